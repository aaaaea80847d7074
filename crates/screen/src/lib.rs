//! Actions of policies for findings of the scanner, and output of a sandbox that is scanned while it is passed on.
//!
//! Traffic is scanned by the proxy. Here are the other ways out: logs of containers, output of commands, and answers to
//! clients of the router ([`hutch_policy::Door`]). Of all policies with an action the strictest one counts for each finding.

mod action;
mod found;
mod output;
mod reader;
mod report;

use std::sync::OnceLock;

use hutch_scan::Scanner;

pub use action::{Acting, Screen, set_of, strictest};
pub use found::Found;
pub use output::{Output, Until};
pub use reader::Reader;
pub use report::{Findings, Origin, Sighting};

/// Returns the rules of the scanner, which are read at the first use.
pub fn scanner() -> &'static Scanner {
    static SCANNER: OnceLock<Scanner> = OnceLock::new();
    SCANNER.get_or_init(Scanner::builtin)
}
