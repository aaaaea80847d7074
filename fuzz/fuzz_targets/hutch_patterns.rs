#![no_main]
#![allow(dead_code, reason = "the program uses more of these files")]

#[path = "../../crates/hutch/src/run/settings"]
mod settings {
    pub(crate) mod pattern;
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| settings::pattern::hostile::pattern(bytes));
