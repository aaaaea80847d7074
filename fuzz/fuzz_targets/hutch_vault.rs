#![no_main]
#![allow(dead_code, reason = "the program uses more of this file")]

#[path = "../../crates/hutch/src/vault/answer.rs"]
mod answer;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| answer::any_answer(bytes));
