//! Scanner for bytes that leave or enter a sandbox: secrets, personal and financial data, injected instructions, attacks.
//!
//! It does no I/O and takes no action. [`Scanner::feed`] returns findings; the caller logs, redacts or blocks. Rules are data
//! ([`RuleSet`]). Every text is matched in several views: as it is, decoded, decompressed, normalized, and with the fields of
//! structured text joined. `docs/scanner.md` documents the rules and the bounds.

mod archive;
mod base85;
mod broken;
mod compression;
mod credential;
mod decode;
mod digits;
mod disguise;
mod earlier;
mod effort;
mod eight;
mod escape;
mod finding;
mod flow;
mod host;
#[cfg(any(test, feature = "fuzzing"))]
pub mod hostile;
mod injection;
mod joins;
mod keywords;
mod lead;
mod mcp;
mod numerals;
mod pattern;
mod phrase;
mod quotation;
mod rule;
mod runs;
mod scanner;
mod sequence;
mod shell;
mod spaced;
mod state;
mod text;
mod validate;
mod view;

pub use compression::{decompressed, magic};
pub use credential::{Credentials, SHORTEST};
pub use finding::{At, Compression, Direction, Finding, Fingerprint, Kind, Location, Severity, Step};
pub use host::{Hosts, domain};
pub use mcp::{Pins, Session, messages};
pub use rule::{Error, RuleSet};
pub use scanner::Scanner;
pub use sequence::{Calls, Sequences};
pub use state::{OVERLAP, State, redact};
