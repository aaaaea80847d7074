#![no_main]
#![allow(dead_code, reason = "the program uses more of these files")]

#[path = "../../crates/hutch/src/client/copy"]
mod copy {
    mod left_out;
    pub(crate) mod unpack;

    use left_out::LeftOut;
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| copy::unpack::hostile::stream(bytes));
