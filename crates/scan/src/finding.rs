//! Findings, and the locations that they name.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Kind of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Text in the form of a secret of some service.
    Secret,
    /// Real value of a credential that belongs to the sandbox.
    Credential,
    /// Personal data.
    Pii,
    /// Numbers of cards and accounts, keys of wallets.
    Financial,
    /// Instructions for a model in text that is data.
    Injection,
    /// Attack on a server.
    Waf,
    /// Dangerous command of a shell.
    Shell,
    /// Form that hides its content.
    Form,
    /// Host name that carries data.
    Host,
    /// Several calls that are dangerous together.
    Sequence,
    /// Definition of a tool that has changed.
    Drift,
    /// Content that exceeds the bounds of the scanner.
    TooComplex,
}

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Hint: of use only together with other facts.
    Low,
    /// Probably what the rule describes.
    Medium,
    /// Almost certainly what the rule describes.
    High,
    /// Certain, and serious.
    Critical,
}

/// Direction of the scanned bytes, seen from the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// From the sandbox.
    Outbound,
    /// Into the sandbox.
    Inbound,
}

/// Part of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum At {
    /// Target of a request: path and query.
    Url,
    /// Host name.
    Host,
    /// Header, named by the location.
    Header,
    /// Body of a request or an answer, or file.
    Body,
    /// Payload of WebSocket frames.
    Frame,
    /// Arguments of a tool call.
    ToolArgs,
    /// Result of a tool call.
    ToolResult,
    /// Definition of a tool, or the card of an agent.
    ToolDefinition,
    /// Output of a process.
    Output,
}

impl At {
    /// All parts.
    pub const ALL: [At; 9] = [
        At::Url,
        At::Host,
        At::Header,
        At::Body,
        At::Frame,
        At::ToolArgs,
        At::ToolResult,
        At::ToolDefinition,
        At::Output,
    ];
}

/// Compression of a body, as its header declares it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Compression {
    /// gzip.
    Gzip,
    /// zlib, or deflate without its header.
    Deflate,
    /// Brotli.
    Brotli,
    /// Zstandard.
    Zstd,
    /// ZIP archive, which no header declares.
    Zip,
}

impl Compression {
    /// Reads one value of `Content-Encoding`.
    pub fn named(name: &str) -> Option<Compression> {
        match name.trim().to_ascii_lowercase().as_str() {
            "gzip" | "x-gzip" => Some(Compression::Gzip),
            "deflate" => Some(Compression::Deflate),
            "br" => Some(Compression::Brotli),
            "zstd" => Some(Compression::Zstd),
            _ => None,
        }
    }
}

/// Where bytes come from.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Location {
    /// Part of the message.
    pub at: At,
    /// Name of the header, the tool or the file; empty if the part has no name.
    pub name: String,
    /// Declared compression of a body.
    pub compression: Option<Compression>,
}

impl Location {
    /// Returns the location of a part without a name.
    pub fn new(at: At) -> Location {
        Location { at, name: String::new(), compression: None }
    }

    /// Returns the location of a part with a name.
    pub fn named(at: At, name: impl Into<String>) -> Location {
        Location { at, name: name.into(), compression: None }
    }

    /// Returns the location of a compressed body.
    pub fn compressed(compression: Compression) -> Location {
        Location { at: At::Body, name: String::new(), compression: Some(compression) }
    }
}

/// Step from the bytes of the message to the text that matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// Percent-encoding.
    Percent,
    /// Escapes of programming languages, JSON and HTML.
    Escapes,
    /// Normalization of Unicode: invisible characters removed, letters folded.
    Text,
    /// Base64, in either alphabet.
    Base64,
    /// Base32.
    Base32,
    /// Base85.
    Base85,
    /// Quoted-printable.
    Quoted,
    /// Hexadecimal digits.
    Hex,
    /// Single characters with a separator between them.
    Spaced,
    /// Reversed text.
    Reversed,
    /// ROT13.
    Rotated,
    /// ROT47, of all graphic characters.
    Turned,
    /// Pieces of a secret with other characters between them.
    Broken,
    /// Digits and signs that stand for letters, as in `1gn0re`.
    Figures,
    /// Literals that a program puts together.
    Literals,
    /// Lines of a paragraph as one, without marks of HTML and Markdown.
    Flow,
    /// ZIP archive.
    Zip,
    /// gzip.
    Gzip,
    /// zlib or deflate.
    Deflate,
    /// Brotli.
    Brotli,
    /// Zstandard.
    Zstd,
    /// Fields of a structure, next to each other.
    Join,
    /// Words of a command, as a shell reads them.
    Shell,
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Step::Percent => "percent",
            Step::Escapes => "escapes",
            Step::Text => "text",
            Step::Base64 => "base64",
            Step::Base32 => "base32",
            Step::Base85 => "base85",
            Step::Quoted => "quoted-printable",
            Step::Hex => "hex",
            Step::Spaced => "spaced",
            Step::Reversed => "reversed",
            Step::Rotated => "rot13",
            Step::Turned => "rot47",
            Step::Broken => "pieces",
            Step::Figures => "figures",
            Step::Literals => "literals",
            Step::Flow => "flow",
            Step::Zip => "zip",
            Step::Gzip => "gzip",
            Step::Deflate => "deflate",
            Step::Brotli => "br",
            Step::Zstd => "zstd",
            Step::Join => "join",
            Step::Shell => "shell",
        }
    }
}

/// First 8 bytes of the SHA-256 of a value. It identifies a value without revealing it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(pub [u8; 8]);

impl Fingerprint {
    /// Returns the fingerprint of a value.
    pub fn of(value: &[u8]) -> Fingerprint {
        let digest = Sha256::digest(value);
        let mut first = [0; 8];
        first.copy_from_slice(&digest[..8]);
        Fingerprint(first)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One match of a rule. It never holds the matched text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Id of the rule.
    pub rule: String,
    /// Kind of the rule.
    pub kind: Kind,
    /// Severity.
    pub severity: Severity,
    /// Part of the message.
    pub at: At,
    /// Name of the header, tool or file.
    pub name: String,
    /// Bytes of the part, counted from its start, that hold the match or what decodes to it.
    pub range: Option<Range<u64>>,
    /// Steps from the bytes to the text that matched; empty for the bytes themselves.
    pub steps: Vec<Step>,
    /// Fingerprint of the matched value.
    pub fingerprint: Fingerprint,
}

impl Finding {
    /// Returns the steps as text, for example `base64 > gzip`; empty if there are no steps.
    pub fn view(&self) -> String {
        self.steps.iter().map(|step| step.name()).collect::<Vec<_>>().join(" > ")
    }
}
