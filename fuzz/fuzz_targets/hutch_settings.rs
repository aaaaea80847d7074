#![no_main]
#![allow(dead_code, reason = "the program uses more of these files")]

#[path = "../../crates/hutch/src/upstream_proxy.rs"]
mod upstream_proxy;

#[path = "../../crates/hutch/src/policy/import"]
mod import {
    mod notes;
    pub(crate) mod srt;

    use notes::Notes;
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| import::srt::hostile::settings(bytes));
