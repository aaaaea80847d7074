//! Hostile tests of the scanner, from arbitrary bytes.
