#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hutch_policy::hostile::network(bytes));
