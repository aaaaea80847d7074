#![no_main]
#![allow(dead_code, reason = "the program uses more of this file")]

#[path = "../../crates/hutch/src/cluster.rs"]
mod cluster;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cluster::any_kubeconfig(bytes));
