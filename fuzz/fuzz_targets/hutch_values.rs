#![no_main]
#![allow(dead_code, reason = "the program uses more of these files")]

#[path = "../../crates/hutch/src/go.rs"]
mod go;
#[path = "../../crates/hutch/src/hostile.rs"]
mod hostile;
#[path = "../../crates/hutch/src/quantity.rs"]
mod quantity;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hostile::values(bytes));
