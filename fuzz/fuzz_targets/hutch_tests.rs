#![no_main]
#![allow(dead_code, reason = "the program uses more of these files")]

#[path = "../../crates/hutch/src/policy"]
mod policy {
    pub(crate) mod import {
        mod file;

        pub(crate) use file::in_one_line;
    }
    pub(crate) mod test {
        pub(crate) mod documents;
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| policy::test::documents::hostile::documents(bytes));
