//! Tests of the scanner: the examples of gitleaks in every encoding, and cases of our own.

mod bounds;
mod cases;
mod encode;
mod expand;
mod gitleaks;
mod mutations;
