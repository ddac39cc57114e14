//! Blanks what is not code in Rust text, so that rules may search for words without meeting them
//! in comments and strings.

/// `text` with every character of a comment, and inside a literal, replaced by a blank. Lines stay
/// where they are.
pub(super) fn code_only(text: &str) -> String {
    let mut scrubber = Scrubber {
        rest: text.chars().collect(),
        at: 0,
        out: String::new(),
    };
    while scrubber.at < scrubber.rest.len() {
        scrubber.step();
    }
    scrubber.out
}

/// Whether `word` stands in `line` with no identifier character on either side.
pub(super) fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let after = line[start + word.len()..].chars().next();
        !before.is_some_and(is_identifier) && !after.is_some_and(is_identifier)
    })
}

fn is_identifier(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

struct Scrubber {
    rest: Vec<char>,
    at: usize,
    out: String,
}

impl Scrubber {
    fn step(&mut self) {
        match (self.peek(0), self.peek(1)) {
            (Some('/'), Some('/')) => self.blank_until(|s| s.peek(0) == Some('\n')),
            (Some('/'), Some('*')) => self.block_comment(),
            (Some('"'), _) => self.string(),
            (Some('\''), _) if self.is_char_literal() => self.char_literal(),
            (Some('r'), Some('"' | '#')) if self.starts_raw_string() => self.raw_string(),
            _ => self.keep(),
        }
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.rest.get(self.at + ahead).copied()
    }

    fn keep(&mut self) {
        self.out.extend(self.peek(0));
        self.at += 1;
    }

    fn blank(&mut self) {
        let blanked = if self.peek(0) == Some('\n') {
            '\n'
        } else {
            ' '
        };
        self.out.push(blanked);
        self.at += 1;
    }

    fn blank_until(&mut self, over: impl Fn(&Self) -> bool) {
        while self.at < self.rest.len() && !over(self) {
            self.blank();
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0_usize;
        while self.at < self.rest.len() {
            match (self.peek(0), self.peek(1)) {
                (Some('/'), Some('*')) => depth += 1,
                (Some('*'), Some('/')) => depth -= 1,
                _ => {
                    self.blank();
                    continue;
                }
            }
            self.blank();
            self.blank();
            if depth == 0 {
                return;
            }
        }
    }

    fn string(&mut self) {
        self.keep();
        while let Some(c) = self.peek(0) {
            match c {
                '"' => return self.keep(),
                '\\' if self.peek(1).is_some() => {
                    self.blank();
                    self.blank();
                }
                _ => self.blank(),
            }
        }
    }

    /// Tells `'x'` and `'\n'` from a lifetime.
    fn is_char_literal(&self) -> bool {
        self.peek(1) == Some('\\') || self.peek(2) == Some('\'')
    }

    fn char_literal(&mut self) {
        self.keep();
        if self.peek(0) == Some('\\') {
            self.blank();
        }
        self.blank();
        self.blank_until(|s| s.peek(0) == Some('\''));
        self.keep();
    }

    fn hashes_from(&self, ahead: usize) -> usize {
        (ahead..).take_while(|&i| self.peek(i) == Some('#')).count()
    }

    fn starts_raw_string(&self) -> bool {
        let mut before = self.rest[..self.at].iter().rev().copied();
        let previous = before.next();
        let prefixed =
            matches!(previous, Some('b' | 'c')) && !before.next().is_some_and(is_identifier);
        let alone = !previous.is_some_and(is_identifier);
        (alone || prefixed) && self.peek(1 + self.hashes_from(1)) == Some('"')
    }

    fn raw_string(&mut self) {
        let hashes = self.hashes_from(1);
        let closes = |s: &Self| s.peek(0) == Some('"') && s.hashes_from(1) >= hashes;
        for _ in 0..hashes + 2 {
            self.keep();
        }
        self.blank_until(closes);
        for _ in 0..=hashes {
            self.keep();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_blanked_and_lines_kept() {
        assert_eq!(code_only("a // b\nc"), "a     \nc");
        assert_eq!(
            code_only("a /* b\n/* c */ d */ e"),
            "a     \n             e"
        );
    }

    #[test]
    fn insides_of_strings_are_blanked() {
        assert_eq!(
            code_only(r#"f("a // b \" c") + 1"#),
            r#"f("           ") + 1"#
        );
        assert_eq!(code_only("r#\"a \" b\"# x"), "r#\"     \"# x");
        assert_eq!(code_only("br\"a\\\" x"), "br\"  \" x");
    }

    #[test]
    fn char_literals_are_blanked_and_lifetimes_kept() {
        assert_eq!(
            code_only(r#"'"' '\'' '\u{1f}' x"#),
            r#"' ' '  ' '      ' x"#
        );
        assert_eq!(code_only("&'a str, 'b: loop"), "&'a str, 'b: loop");
    }

    #[test]
    fn an_identifier_ending_in_r_starts_no_raw_string() {
        assert_eq!(code_only("for\"a\" x"), "for\" \" x");
        assert_eq!(code_only("r#type x"), "r#type x");
    }

    #[test]
    fn an_unfinished_literal_ends_with_the_text() {
        assert_eq!(code_only("\"a\\"), "\"  ");
        assert_eq!(code_only("/* a"), "    ");
    }

    #[test]
    fn a_word_is_found_only_whole() {
        assert!(has_word("pub unsafe fn", "unsafe"));
        assert!(!has_word("#![forbid(unsafe_code)]", "unsafe"));
    }
}
