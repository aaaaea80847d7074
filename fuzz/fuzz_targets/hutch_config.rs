#![no_main]
#![allow(dead_code, reason = "the program uses more of these files")]

#[path = "../../crates/hutch/src/allow.rs"]
mod allow;
#[path = "../../crates/hutch/src/policy/import"]
mod import {
    mod file;
    mod notes;
    pub(crate) mod sandbox_config;

    use file::in_one_line;
    use notes::Notes;
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| import::sandbox_config::hostile::config(bytes));
