//! Files that lie: each gets the error that says what is wrong, and where.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::path::Path;

use vrampager_models::{At, Layout, ModelError};

/// The error that a file of these bytes gets. `name` decides the format if the content does not.
fn error_of(name: &str, bytes: &[u8]) -> ModelError {
    match Layout::of_bytes(Path::new(name), bytes) {
        Err(error) => error,
        Ok(layout) => panic!("accepted {layout:?}"),
    }
}

/// Asserts the variant of an error and returns its place.
macro_rules! assert_variant {
    ($error:expr, $variant:ident) => {
        match $error {
            ModelError::$variant { at, .. } => at,
            other => panic!("{} instead of {}: {other:?}", other, stringify!($variant)),
        }
    };
}

fn tensor_of(at: &At) -> &str {
    at.tensor.as_deref().expect("the error names a tensor")
}

mod safetensors {
    use super::*;

    const NAME: &str = "a.safetensors";
    const ONE: &str = r#""a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}"#;

    fn file(header: &str, data_bytes: usize) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + data_bytes, 0);
        bytes
    }

    fn error(header: &str, data_bytes: usize) -> ModelError {
        error_of(NAME, &file(header, data_bytes))
    }

    /// The error for one entry of four bytes with these three fields.
    fn entry(dtype: &str, shape: &str, offsets: &str) -> ModelError {
        let entry =
            format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#);
        error(&entry, 4)
    }

    #[test]
    fn lengths_that_lie_about_the_file() {
        assert_eq!(assert_variant!(error_of(NAME, b""), Truncated).offset, 0);
        assert_eq!(
            assert_variant!(error_of(NAME, &[2, 0, 0]), Truncated).offset,
            0
        );
        let whole = file(&format!("{{{ONE}}}"), 4);
        assert_eq!(
            assert_variant!(error_of(NAME, &whole[..20]), Truncated).offset,
            8
        );
        let short = error_of(NAME, &whole[..whole.len() - 1]);
        assert!(matches!(
            short,
            ModelError::Truncated {
                needed: 4,
                available: 3,
                ..
            }
        ));
        assert_eq!(tensor_of(&assert_variant!(short, Truncated)), "a");
        assert_variant!(error_of(NAME, &[0xff; 64]), LimitExceeded);
        assert_variant!(
            error_of(NAME, &100_000_001_u64.to_le_bytes()),
            LimitExceeded
        );
        assert_variant!(error_of(NAME, &100_000_000_u64.to_le_bytes()), Truncated);
    }

    #[test]
    fn headers_that_are_not_the_json_of_the_format() {
        for header in ["", "{", "[]", "null", "\u{0}", r#"{"a":1}"#, "{} {}"] {
            assert_eq!(assert_variant!(error(header, 0), Header).offset, 8);
        }
        assert_variant!(error_of(NAME, b"\x02\0\0\0\0\0\0\0{\xff"), Header);
        assert_variant!(error(r#"{"__metadata__":{"a":1}}"#, 0), Header);
        assert_variant!(error(r#"{"__metadata__":{},"__metadata__":{}}"#, 0), Header);
        assert_variant!(error(&"[".repeat(100_000), 0), Header);
        assert_variant!(
            error(&format!(r#"{{"a":{}"#, "[".repeat(100_000)), 0),
            Header
        );
    }

    #[test]
    fn entries_whose_fields_are_not_of_the_format() {
        assert_variant!(entry("U9", "[4]", "[0,4]"), Header);
        assert_variant!(entry("U8", "[-4]", "[0,4]"), Header);
        assert_variant!(entry("U8", "[4.0]", "[0,4]"), Header);
        assert_variant!(entry("U8", "[18446744073709551616]", "[0,4]"), Header);
        assert_variant!(entry("U8", "[4]", "[0]"), Header);
        assert_variant!(entry("U8", "[4]", "[0,4,8]"), Header);
    }

    #[test]
    fn sizes_that_shape_and_type_contradict() {
        let wrong = entry("U8", "[3]", "[0,4]");
        assert!(matches!(
            wrong,
            ModelError::LengthMismatch {
                expected: 3,
                found: 4,
                ..
            }
        ));
        assert_eq!(tensor_of(&assert_variant!(wrong, LengthMismatch)), "a");
        assert_variant!(entry("F32", "[4]", "[0,4]"), LengthMismatch);
        assert_variant!(entry("F4", "[7]", "[0,4]"), Malformed);
        assert_variant!(entry("U8", "[4]", "[4,0]"), Malformed);
        assert_variant!(entry("U8", "[4294967296,4294967296]", "[0,4]"), Malformed);
        assert_variant!(entry("F64", "[2305843009213693952]", "[0,4]"), Malformed);
        assert_variant!(
            entry(
                "U8",
                "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,4]",
                "[0,4]"
            ),
            LimitExceeded
        );
    }

    #[test]
    fn ranges_that_do_not_tile_the_data() {
        let second = |offsets: &str| {
            let entry =
                format!(r#"{{{ONE},"b":{{"dtype":"U8","shape":[4],"data_offsets":{offsets}}}}}"#);
            error(&entry, 8)
        };
        let overlap = second("[3,7]");
        assert!(overlap.to_string().contains(r#"tensor "b""#), "{overlap}");
        assert!(
            overlap.to_string().contains(r#"overlaps tensor "a""#),
            "{overlap}"
        );
        assert_variant!(overlap, Overlap);
        assert_variant!(second("[0,4]"), Overlap);
        assert!(matches!(
            second("[5,9]"),
            ModelError::Uncovered { bytes: 1, .. }
        ));
        assert!(matches!(
            second("[18446744073709551611,18446744073709551615]"),
            ModelError::Uncovered { .. }
        ));
        let trailing = error(&format!("{{{ONE}}}"), 6);
        assert!(matches!(trailing, ModelError::Uncovered { bytes: 2, .. }));
    }

    #[test]
    fn names_that_are_doubled_or_endless() {
        let twice = ONE.replace("[0,4]", "[4,8]");
        let doubled = error(&format!("{{{ONE},{twice}}}"), 8);
        assert_eq!(tensor_of(&assert_variant!(doubled, DuplicateName)), "a");
        let long = ONE.replace("\"a\"", &format!("\"{}\"", "a".repeat(1025)));
        assert_variant!(error(&format!("{{{long}}}"), 4), LimitExceeded);
    }

    #[test]
    fn control_characters_of_a_name_do_not_reach_the_message() {
        let evil = ONE.replace("\"a\"", r#""\u001b[2J""#);
        let message = error(&format!("{{{evil}}}"), 3).to_string();
        assert!(
            message.contains("tensor \"\\u{1b}[2J\" at byte"),
            "{message}"
        );
    }
}

mod gguf {
    use super::*;

    const F32: u32 = 0;
    const Q4_K: u32 = 12;

    fn text(text: &str) -> Vec<u8> {
        [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
    }

    fn header(version: u32, tensors: u64, pairs: u64) -> Vec<u8> {
        let counts = [tensors.to_le_bytes(), pairs.to_le_bytes()].concat();
        [b"GGUF".as_slice(), &version.to_le_bytes(), &counts].concat()
    }

    fn pair(key: &str, value_type: u32, value: &[u8]) -> Vec<u8> {
        [&text(key), value_type.to_le_bytes().as_slice(), value].concat()
    }

    fn tensor(name: &str, dims: &[u64], ggml_type: u32, offset: u64) -> Vec<u8> {
        let mut bytes = text(name);
        bytes.extend(u32::try_from(dims.len()).unwrap().to_le_bytes());
        bytes.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
        bytes.extend(ggml_type.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
        bytes
    }

    /// A file of these tensor descriptions and 64 bytes of data.
    fn with_tensors(tensors: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = header(3, tensors.len() as u64, 0);
        bytes.extend(tensors.concat());
        bytes.resize(bytes.len().next_multiple_of(32) + 64, 0);
        bytes
    }

    fn error_of_tensors(tensors: &[Vec<u8>]) -> ModelError {
        error_of("a.gguf", &with_tensors(tensors))
    }

    fn error_of_pairs(pairs: &[Vec<u8>]) -> ModelError {
        let bytes = [header(3, 0, pairs.len() as u64), pairs.concat()].concat();
        error_of("a.gguf", &bytes)
    }

    #[test]
    fn good_files_of_both_versions_are_read() {
        let tensors = [tensor("a", &[2, 4], F32, 0), tensor("b", &[], F32, 32)];
        let mut bytes = with_tensors(&tensors);
        for version in [2, 3] {
            bytes[4] = version;
            let layout = Layout::of_bytes(Path::new("a"), &bytes).unwrap();
            let ranges: Vec<_> = layout.tensors.iter().map(|t| (t.offset, t.len)).collect();
            assert_eq!(ranges, [(96, 32), (128, 4)]);
        }
    }

    #[test]
    fn quantised_tensors_are_as_long_as_their_blocks() {
        // Type number, elements, bytes: two blocks of each, from the tables of ggml.
        let cases = [
            (2, 64, 36),
            (8, 64, 68),
            (10, 512, 168),
            (Q4_K, 512, 288),
            (14, 512, 420),
        ];
        for (ggml_type, elements, len) in cases {
            let mut bytes = with_tensors(&[tensor("a", &[elements], ggml_type, 0)]);
            bytes.resize(bytes.len() + 512, 0);
            let layout = Layout::of_bytes(Path::new("a"), &bytes).unwrap();
            assert_eq!(layout.tensors[0].len, len, "type {ggml_type}");
        }
    }

    #[test]
    fn metadata_of_every_type_is_stepped_over() {
        let strings = [
            8_u32.to_le_bytes().to_vec(),
            2_u64.to_le_bytes().to_vec(),
            text("x"),
            text(""),
        ];
        let nested = [
            9_u32.to_le_bytes().to_vec(),
            1_u64.to_le_bytes().to_vec(),
            strings.concat(),
        ];
        let pairs = [
            pair("u8", 0, &[1]),
            pair("i16", 3, &[1; 2]),
            pair("bool", 7, &[1]),
            pair("f32", 6, &[1; 4]),
            pair("f64", 12, &[1; 8]),
            pair("text", 8, &text("y")),
            pair("strings", 9, &strings.concat()),
            pair("nested", 9, &nested.concat()),
            pair("general.alignment", 4, &64_u32.to_le_bytes()),
        ];
        let mut bytes = [
            header(3, 1, pairs.len() as u64),
            pairs.concat(),
            tensor("a", &[1], F32, 64),
        ]
        .concat();
        let data_start = bytes.len().next_multiple_of(64);
        bytes.resize(data_start + 68, 0);
        let layout = Layout::of_bytes(Path::new("a"), &bytes).unwrap();
        assert_eq!(layout.tensors[0].offset, data_start as u64 + 64);
    }

    #[test]
    fn versions_that_are_not_known() {
        for version in [0, 1, 4, 3_u32.swap_bytes()] {
            let error = error_of("a", &header(version, 0, 0));
            let number = u64::from(version);
            assert!(matches!(error, ModelError::Unsupported { value, .. } if value == number));
        }
    }

    #[test]
    fn counts_that_the_file_cannot_hold() {
        assert_variant!(error_of("a", b"GGUF"), Truncated);
        assert_variant!(error_of("a", &header(3, 0, 0)[..23]), Truncated);
        assert_variant!(error_of("a", &header(3, 1, 0)), Truncated);
        assert_variant!(error_of("a", &header(3, 0, 1)), Truncated);
        assert_variant!(error_of("a", &header(3, 0, u64::MAX)), Truncated);
        assert_variant!(error_of("a", &header(3, u64::MAX, 0)), LimitExceeded);
    }

    #[test]
    fn metadata_that_lies() {
        let long = [u64::MAX.to_le_bytes().as_slice(), &[0; 8]].concat();
        assert_variant!(error_of_pairs(&[pair("a", 8, &long)]), Truncated);
        assert_variant!(error_of_pairs(&[long]), LimitExceeded);
        assert_variant!(error_of_pairs(&[pair("a", 13, &[0; 8])]), Unsupported);
        let array = |value_type: u32, count: u64| {
            pair(
                "a",
                9,
                &[value_type.to_le_bytes().as_slice(), &count.to_le_bytes()].concat(),
            )
        };
        assert_variant!(error_of_pairs(&[array(10, u64::MAX)]), Truncated);
        assert_variant!(error_of_pairs(&[array(8, u64::MAX)]), Truncated);
        assert_variant!(error_of_pairs(&[array(9, 1 << 40)]), Truncated);
        let deep = [9_u32.to_le_bytes().as_slice(), &1_u64.to_le_bytes()]
            .concat()
            .repeat(1000);
        assert_variant!(error_of_pairs(&[pair("a", 9, &deep)]), LimitExceeded);
        let not_utf8 = [1_u64.to_le_bytes().as_slice(), &[0xff; 5]].concat();
        assert_variant!(error_of_pairs(&[not_utf8]), Malformed);
    }

    #[test]
    fn alignments_without_a_meaning() {
        let alignment = |value: u32| pair("general.alignment", 4, &value.to_le_bytes());
        assert_variant!(error_of_pairs(&[alignment(0)]), Malformed);
        assert_variant!(error_of_pairs(&[alignment(48)]), Malformed);
        assert_variant!(error_of_pairs(&[alignment(1 << 31)]), LimitExceeded);
        assert_variant!(error_of_pairs(&[alignment(32), alignment(32)]), Malformed);
        assert_variant!(
            error_of_pairs(&[pair("general.alignment", 10, &[0; 8])]),
            Unsupported
        );
    }

    #[test]
    fn tensors_that_lie() {
        let one = |dims: &[u64], ggml_type, offset| {
            error_of_tensors(&[tensor("a", dims, ggml_type, offset)])
        };
        assert_variant!(one(&[1, 1, 1, 1, 1], F32, 0), LimitExceeded);
        assert_variant!(one(&[4], 4, 0), Unsupported);
        assert_variant!(one(&[4], 99, 0), Unsupported);
        assert_variant!(one(&[255], Q4_K, 0), Malformed);
        assert_variant!(one(&[1 << 32, 1 << 32], F32, 0), Malformed);
        assert_variant!(one(&[1 << 62], F32, 0), Malformed);
        assert_variant!(one(&[4], F32, 31), Misaligned);
        assert_variant!(one(&[17], F32, 0), Truncated);
        assert_variant!(one(&[1], F32, 96), Truncated);
        let far = one(&[1], F32, u64::MAX - 31);
        assert_eq!(tensor_of(&assert_variant!(far, Truncated)), "a");
    }

    #[test]
    fn tensors_that_share_bytes_or_names() {
        let [a, b] = [tensor("a", &[9], F32, 0), tensor("b", &[1], F32, 32)];
        let overlap = error_of_tensors(&[b, a]);
        assert!(matches!(&overlap, ModelError::Overlap { other, .. } if other == "a"));
        assert_eq!(tensor_of(&assert_variant!(overlap, Overlap)), "b");
        let twins = [tensor("a", &[1], F32, 0), tensor("a", &[1], F32, 32)];
        assert_eq!(
            tensor_of(&assert_variant!(error_of_tensors(&twins), DuplicateName)),
            "a"
        );
    }
}

mod onnx {
    use super::*;

    const NAME: &str = "a.onnx";
    // Fields of a TensorProto.
    const FLOAT_DATA: u8 = 4;
    const INT32_DATA: u8 = 5;
    const INT64_DATA: u8 = 7;
    const RAW_DATA: u8 = 9;
    // Its data types.
    const FLOAT: u8 = 1;
    const UINT8: u8 = 2;
    const INT64: u8 = 7;

    fn varint(mut value: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while value >= 0x80 {
            bytes.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        bytes.push(value.to_le_bytes()[0]);
        bytes
    }

    fn number(field: u8, value: u64) -> Vec<u8> {
        [vec![field << 3], varint(value)].concat()
    }

    fn bytes(field: u8, payload: &[u8]) -> Vec<u8> {
        [
            varint(u64::from(field) << 3 | 2),
            varint(payload.len() as u64),
            payload.to_vec(),
        ]
        .concat()
    }

    fn tensor(name: &str, dims: &[u64], data_type: u8, data: &[u8]) -> Vec<u8> {
        let dims: Vec<_> = dims.iter().flat_map(|&dim| number(1, dim)).collect();
        [
            dims,
            number(2, data_type.into()),
            bytes(8, name.as_bytes()),
            data.to_vec(),
        ]
        .concat()
    }

    fn model(graph: &[u8]) -> Vec<u8> {
        [number(1, 8), bytes(7, graph)].concat()
    }

    fn initializer(tensor: &[u8]) -> Vec<u8> {
        model(&bytes(5, tensor))
    }

    /// A node of output `output` with one attribute.
    fn node(output: &str, attribute: &[u8]) -> Vec<u8> {
        bytes(
            1,
            &[bytes(2, output.as_bytes()), bytes(5, attribute)].concat(),
        )
    }

    fn layout(file: &[u8]) -> Layout {
        Layout::of_bytes(Path::new(NAME), file).unwrap()
    }

    fn error_of_tensor(dims: &[u64], data_type: u8, data: &[u8]) -> ModelError {
        error_of(NAME, &initializer(&tensor("a", dims, data_type, data)))
    }

    #[test]
    fn payloads_of_every_encoding_are_found_where_they_lie() {
        let cases = [
            (vec![2], UINT8, bytes(RAW_DATA, b"raw"[..2].into()), 2),
            (vec![1], FLOAT, bytes(FLOAT_DATA, &[7; 4]), 4),
            (vec![3], UINT8, bytes(INT32_DATA, &[7; 3]), 3),
            (vec![2], INT64, bytes(INT64_DATA, &[0x87, 7, 7]), 3),
            (vec![], UINT8, bytes(RAW_DATA, &[7]), 1),
            (vec![0], FLOAT, vec![], 0),
            (vec![2, 0], FLOAT, bytes(RAW_DATA, &[]), 0),
            (vec![3], 22, bytes(RAW_DATA, &[7; 2]), 2),
        ];
        for (dims, data_type, data, len) in cases {
            let file = initializer(&tensor("a", &dims, data_type, &data));
            let layout = layout(&file);
            assert_eq!(layout.tensors[0].len, len, "{data:?}");
            let end = layout.tensors[0].offset + len;
            assert!(len == 0 || end == file.len() as u64, "{data:?}");
        }
    }

    #[test]
    fn dimensions_may_be_packed_and_fields_in_any_order() {
        let tensor = [
            bytes(RAW_DATA, &[7; 6]),
            bytes(8, b"a"),
            bytes(1, &[2, 3]),
            number(2, UINT8.into()),
        ];
        assert_eq!(
            layout(&initializer(&tensor.concat())).tensors[0].shape,
            [2, 3]
        );
    }

    #[test]
    fn tensors_in_attributes_subgraphs_and_functions_have_names_of_their_own() {
        let weight = |name| tensor(name, &[1], UINT8, &bytes(RAW_DATA, &[7]));
        let value = [bytes(1, b"value"), bytes(5, &weight("ignored"))].concat();
        let inner = [bytes(5, &weight("w")), node("c", &value)].concat();
        let branch = [bytes(1, b"then_branch"), bytes(6, &inner)].concat();
        let list = [
            bytes(1, b"list"),
            bytes(10, &weight("")),
            bytes(10, &weight("")),
        ]
        .concat();
        let graph = [
            node("c", &value),
            node("if", &branch),
            node("l", &list),
            bytes(5, &weight("w")),
        ]
        .concat();
        let function = [bytes(1, b"f"), bytes(7, &node("c", &value)[2..])].concat();
        let file = [model(&graph), bytes(25, &function)].concat();

        let layout = layout(&file);
        let names: Vec<_> = layout
            .tensors
            .iter()
            .map(|tensor| tensor.name.as_str())
            .collect();

        let expected = [
            "c",
            "if.then_branch[0]/w",
            "if.then_branch[0]/c",
            "l.list[0]",
            "l.list[1]",
            "w",
            "f/c",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn sparse_initializers_are_two_tensors() {
        let weight = |name| tensor(name, &[1], UINT8, &bytes(RAW_DATA, &[7]));
        let sparse = [bytes(1, &weight("w")), bytes(2, &weight(""))].concat();
        let names: Vec<_> = layout(&model(&bytes(15, &sparse)))
            .tensors
            .into_iter()
            .map(|t| t.name)
            .collect();
        assert!(
            names[0] == "w" && names[1].ends_with(".indices"),
            "{names:?}"
        );
    }

    #[test]
    fn models_without_a_graph_or_with_two() {
        assert_variant!(error_of(NAME, b""), Malformed);
        assert_variant!(error_of(NAME, &number(1, 8)), Malformed);
        assert_variant!(
            error_of(NAME, &[model(b""), bytes(7, b"")].concat()),
            Malformed
        );
    }

    #[test]
    fn bytes_that_are_not_protobuf() {
        for wrong in [
            [0x08].as_slice(),
            &[0x00, 0x00],
            &[0x3b],
            &[0x3c],
            &[0x0f, 0x00],
            &[0xff; 12],
            &[
                0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
            ],
        ] {
            assert_variant!(error_of(NAME, wrong), Malformed);
        }
        let wrong_type = [number(1, 8), number(7, 0)].concat();
        assert_eq!(
            assert_variant!(error_of(NAME, &wrong_type), Malformed).offset,
            2
        );
        assert_variant!(error_of(NAME, &initializer(&bytes(2, b"x"))), Malformed);
        assert_variant!(error_of(NAME, &initializer(&number(8, 1))), Malformed);
        assert_variant!(error_of(NAME, &initializer(&bytes(1, &[0x80]))), Malformed);
        assert_variant!(
            error_of(NAME, &initializer(&[(1 << 3) | 5, 0, 0, 0, 0])),
            Malformed
        );
    }

    #[test]
    fn lengths_that_leave_the_message_or_the_file() {
        let file = initializer(&tensor("a", &[4], UINT8, &bytes(RAW_DATA, &[7; 4])));
        assert_variant!(error_of(NAME, &file[..file.len() - 1]), Truncated);
        let huge = [number(1, 8), vec![0x3a], varint(u64::MAX)].concat();
        assert!(matches!(
            error_of(NAME, &huge),
            ModelError::Truncated {
                needed: u64::MAX,
                ..
            }
        ));
        let beyond_parent = [model(&[0x2a, 5]), bytes(8, b"opset")].concat();
        assert_variant!(error_of(NAME, &beyond_parent), Truncated);
        let fixed = [number(1, 8), vec![(7 << 3) | 1, 0, 0]].concat();
        assert_variant!(error_of(NAME, &fixed), Truncated);
    }

    #[test]
    fn tensors_whose_payload_contradicts_their_shape() {
        let short = error_of_tensor(&[4], UINT8, &bytes(RAW_DATA, &[7; 3]));
        assert!(matches!(
            short,
            ModelError::LengthMismatch {
                expected: 4,
                found: 3,
                ..
            }
        ));
        assert_eq!(tensor_of(&assert_variant!(short, LengthMismatch)), "a");
        assert_variant!(error_of_tensor(&[1], FLOAT, &[]), LengthMismatch);
        assert_variant!(
            error_of_tensor(&[4], UINT8, &bytes(FLOAT_DATA, &[7; 4])),
            LengthMismatch
        );
        assert_variant!(
            error_of_tensor(&[2], INT64, &bytes(INT64_DATA, &[7])),
            LengthMismatch
        );
        assert_variant!(
            error_of_tensor(&[1], INT64, &bytes(INT64_DATA, &[7; 11])),
            LengthMismatch
        );
    }

    #[test]
    fn tensors_that_cannot_be_one_range_of_bytes() {
        let unsupported = |data: Vec<u8>| {
            let error = error_of_tensor(&[1], UINT8, &data);
            assert_eq!(tensor_of(&assert_variant!(error, Unsupported)), "a");
        };
        unsupported(bytes(13, b""));
        unsupported(number(14, 1));
        unsupported(bytes(3, b""));
        unsupported(bytes(6, b"text"));
        unsupported(number(INT32_DATA, 7));
        unsupported([bytes(RAW_DATA, &[7]), bytes(RAW_DATA, &[7])].concat());
        unsupported([bytes(RAW_DATA, &[7]), bytes(INT32_DATA, &[7])].concat());
        assert_variant!(error_of_tensor(&[1], 8, &[]), Unsupported);
        assert_variant!(error_of_tensor(&[1], 0, &[]), Unsupported);
        assert_variant!(error_of_tensor(&[1], 99, &[]), Unsupported);
    }

    #[test]
    fn shapes_without_a_meaning() {
        assert_variant!(error_of_tensor(&[u64::MAX], UINT8, &[]), Malformed);
        assert_variant!(error_of_tensor(&[1 << 62, 1 << 62], UINT8, &[]), Malformed);
        assert_variant!(error_of_tensor(&[1 << 62], FLOAT, &[]), Malformed);
        assert_variant!(
            error_of_tensor(&[1; 33], UINT8, &bytes(RAW_DATA, &[7])),
            LimitExceeded
        );
    }

    #[test]
    fn names_that_are_doubled_or_endless() {
        let weight = |name| bytes(5, &tensor(name, &[1], UINT8, &bytes(RAW_DATA, &[7])));
        let twins = error_of(NAME, &model(&[weight("a"), weight("a")].concat()));
        assert_eq!(tensor_of(&assert_variant!(twins, DuplicateName)), "a");
        let long = error_of(NAME, &model(&weight(&"a".repeat(1025))));
        assert_variant!(long, LimitExceeded);
        assert_variant!(error_of(NAME, &initializer(&bytes(8, b"\xff"))), Malformed);
    }

    #[test]
    fn subgraphs_without_an_end() {
        let mut graph = Vec::new();
        for _ in 0..1000 {
            graph = node("n", &bytes(6, &graph));
        }
        assert_variant!(error_of(NAME, &model(&graph)), LimitExceeded);
    }

    #[test]
    fn nested_names_do_not_multiply_the_size_of_a_file() {
        let long = "n".repeat(1000);
        let graph = node(&long, &bytes(6, &node(&long, &bytes(6, b""))));
        assert_variant!(error_of(NAME, &model(&graph)), LimitExceeded);
    }
}

mod format {
    use super::*;

    #[test]
    fn what_fits_nothing_is_named_by_content_and_extension() {
        for bytes in [
            b"".as_slice(),
            b"PK\x03\x04zip file",
            b"\x08\x08\x00",
            b"{}",
        ] {
            let error = error_of("model.Pt", bytes);
            assert!(
                matches!(&error, ModelError::UnknownFormat { extension, .. } if extension == "pt")
            );
        }
        let message = error_of("model.pt", b"PK\x03\x04zip file").to_string();
        assert!(
            message.contains(r#""PK\x03\x04zip " nor the extension "pt""#),
            "{message}"
        );
    }

    #[test]
    fn content_goes_before_the_extension() {
        assert!(
            error_of("a.onnx", b"GGUF\x09\0\0\0")
                .to_string()
                .contains("GGUF version 9")
        );
        assert_variant!(error_of("a.gguf", b"\x20\0\0\0\0\0\0\0{\"a\""), Truncated);
    }

    #[test]
    fn the_extension_decides_what_content_leaves_open() {
        assert_variant!(error_of("a.GGUF", b"GGUX"), Malformed);
        assert_variant!(error_of("a.safetensors", b"GGUX"), Truncated);
        assert_variant!(error_of("a.onnx", b"GGUX"), Malformed);
    }
}
