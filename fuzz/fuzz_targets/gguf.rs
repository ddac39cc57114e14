#![no_main]

mod layout;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| layout::check("fuzzed.gguf", bytes));
