#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hutch_audit::hostile::exchange(bytes));
