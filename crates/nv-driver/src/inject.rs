//! Failures on demand: the nth request of a kind is refused instead of carried out.

use std::str::FromStr;

use thiserror::Error;
use vrampager_nv_abi::Status;

use crate::Errno;

/// Which requests an [`Injection`] counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Escape ioctls with this number.
    Escape,
    /// Allocations of this class.
    Alloc,
    /// Controls with this command.
    Control,
    /// Unified memory commands with this number.
    Uvm,
    /// Escape ioctls and unified memory commands of any number.
    Any,
}

/// How a request fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// In its packet; the system call succeeds.
    Status(Status),
    /// The system call itself.
    Errno(Errno),
}

/// One failure to come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Injection {
    /// Which requests count.
    pub kind: Kind,
    /// Their number.
    pub number: u32,
    /// Which of them fails, from 1.
    pub nth: u64,
    /// How.
    pub failure: Failure,
}

/// A failure to inject could not be read.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error(
    "{text:?} is not kind:number:nth:failure, such as uvm:73:1:0x51 or esc:0x57:2:ENOMEM \
     (kinds: esc, alloc, ctrl, uvm, any); failures are a status by its number, but for 0, which is \
     none, or an errno by its name: {}",
    Errno::names()
)]
pub struct InjectionError {
    /// What was given.
    pub text: String,
}

impl FromStr for Injection {
    type Err = InjectionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        read(text).ok_or_else(|| InjectionError {
            text: text.to_owned(),
        })
    }
}

fn read(text: &str) -> Option<Injection> {
    let mut parts = text.split(':');
    let kind = match parts.next()? {
        "esc" => Kind::Escape,
        "alloc" => Kind::Alloc,
        "ctrl" => Kind::Control,
        "uvm" => Kind::Uvm,
        "any" => Kind::Any,
        _ => return None,
    };
    let number = number(parts.next()?)?;
    let nth = parts.next()?.parse().ok().filter(|&nth| nth > 0)?;
    let last = parts.next()?;
    let failure = match Errno::named(last) {
        Some(errno) => Failure::Errno(errno),
        // A status of 0 would swallow the request and call it done.
        None => Failure::Status(Status(self::number(last).filter(|&status| status != 0)?)),
    };
    parts.next().is_none().then_some(Injection {
        kind,
        number,
        nth,
        failure,
    })
}

fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Failures still to come.
#[derive(Debug, Default)]
pub(crate) struct Injector {
    pending: Vec<Injection>,
    came: u64,
}

impl Injector {
    pub(crate) fn new(pending: Vec<Injection>) -> Self {
        Self { pending, came: 0 }
    }

    /// How many failures have had their turn.
    pub(crate) fn came(&self) -> u64 {
        self.came
    }

    pub(crate) fn add(&mut self, injection: Injection) {
        self.pending.push(injection);
    }

    pub(crate) fn pending(&self) -> usize {
        self.pending.len()
    }

    pub(crate) fn clear(&mut self) {
        self.pending.clear();
    }

    /// Counts one request; the failure it gets, if its turn has come.
    pub(crate) fn count(&mut self, kind: Kind, number: u32) -> Option<Failure> {
        let mut failure = None;
        self.pending.retain_mut(|pending| {
            let counts = match pending.kind {
                Kind::Any => matches!(kind, Kind::Escape | Kind::Uvm),
                Kind::Escape | Kind::Alloc | Kind::Control | Kind::Uvm => {
                    pending.kind == kind && pending.number == number
                }
            };
            if !counts {
                return true;
            }
            pending.nth -= 1;
            if pending.nth == 0 {
                failure = failure.or(Some(pending.failure));
                self.came += 1;
            }
            pending.nth > 0
        });
        failure
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nth_request_fails_and_no_other() {
        let mut injector = Injector::new(vec!["uvm:73:2:0x51".parse().unwrap()]);
        assert_eq!(injector.count(Kind::Uvm, 73), None);
        assert_eq!(injector.count(Kind::Uvm, 34), None);
        assert_eq!(injector.count(Kind::Escape, 73), None);
        assert_eq!(injector.came(), 0);
        assert_eq!(
            injector.count(Kind::Uvm, 73),
            Some(Failure::Status(Status::NO_MEMORY))
        );
        assert_eq!(injector.count(Kind::Uvm, 73), None);
        assert_eq!(injector.came(), 1);
    }

    #[test]
    fn any_request_counts_once_whatever_it_carries() {
        let mut injector = Injector::new(vec!["any:0:3:0x51".parse().unwrap()]);
        assert_eq!(injector.count(Kind::Escape, 0x2B), None);
        assert_eq!(injector.count(Kind::Alloc, 0x40), None);
        assert_eq!(injector.count(Kind::Uvm, 73), None);
        assert!(injector.count(Kind::Escape, 0x29).is_some());
    }

    #[test]
    fn a_failure_is_a_status_by_number_or_an_errno_by_name() {
        let injection: Injection = "esc:0x57:1:ENOMEM".parse().unwrap();
        assert_eq!(injection.failure, Failure::Errno(Errno::NoMem));
        for text in [
            "",
            "uvm:73:0:1",
            "uvm:73:1",
            "uvm:73:1:1:1",
            "io:73:1:1",
            "esc:x:1:1",
            "alloc:0x80:1:0",
            "alloc:0x80:1:0x0",
        ] {
            assert!(text.parse::<Injection>().is_err(), "{text}");
        }
    }
}
