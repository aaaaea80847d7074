//! Verification of a log: the chain, the numbers and the signed heads.

use std::fmt;
use std::path::Path;

use serde::Deserialize;

use crate::Error;
use crate::folder::{DURABLE, HEAD, Segment, durable, is_written, segments};
use crate::head::{Head, PUBLIC, PublicKey, Statement};
use crate::line::{Hash, parse};
use crate::read::{Lines, Raw};
use crate::text::Text;

/// Maximum faults of a report.
const FAULTS_MAX: usize = 100;

/// A fault and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Name of the segment, or of another file of the log.
    pub segment: String,
    /// Line, from one; zero for the whole file.
    pub line: u64,
    /// Fault.
    pub fault: String,
}

impl Report {
    /// Returns the number of records at the end that no valid head has signed yet.
    pub fn unsigned(&self) -> u64 {
        self.last.saturating_sub(self.signed)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(to, "{}: {}", self.segment, self.fault),
            line => write!(to, "{}:{line}: {}", self.segment, self.fault),
        }
    }
}

/// Outcome of a verification.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Segments that were read.
    pub segments: usize,
    /// Records that were read.
    pub records: u64,
    /// Number of the first record.
    pub first: u64,
    /// Number of the last record.
    pub last: u64,
    /// Last record that a valid head has signed.
    pub signed: u64,
    /// Faults, the first of them.
    pub faults: Vec<Fault>,
    /// Faults that are not listed.
    pub more: u64,
}

/// Parts of an event of the log itself.
#[derive(Deserialize)]
struct Own {
    class_uid: u32,
    #[serde(default)]
    unmapped: Details,
}

#[derive(Default, Deserialize)]
struct Details {
    statement: Option<String>,
    signature: Option<String>,
    removed_last: Option<u64>,
}

/// Head of a file. The log must have the record that it signs.
struct Expected {
    file: String,
    statement: Statement,
    seen: bool,
}

/// State of a verification.
struct Check {
    report: Report,
    key: Option<PublicKey>,
    /// Number and hash of the record before.
    before: Option<(u64, Hash)>,
    heads: Vec<Expected>,
    /// Last record that retention has deleted.
    removed: u64,
}

/// Verifies a log, also one that another process writes. Signatures are checked with `key`, or with the one in the folder:
/// one that was saved elsewhere shows that the log was not made anew. A copy of an earlier head, a file that was saved
/// elsewhere, shows that the log was not put back to an earlier state.
///
/// # Errors
/// A file cannot be read.
pub fn verify(folder: &Path, key: Option<PublicKey>, saved: Option<&Path>) -> Result<Report, Error> {
    let key = match key {
        Some(key) => Some(key),
        None => PublicKey::read(&folder.join(PUBLIC)).ok(),
    };
    let mut check = Check { report: Report::default(), key, before: None, heads: Vec::new(), removed: 0 };
    // Before the records: a writer may add some meanwhile.
    let is_written = is_written(folder);
    check.read_head(folder)?;
    if let Some(saved) = saved {
        let bytes = std::fs::read(saved).map_err(Error::file(saved))?;
        check.expect(&saved.display().to_string(), &bytes);
    }
    let segments = segments(folder)?;
    if check.key.is_none() && !segments.is_empty() {
        check.fault(PUBLIC, 0, "no public key, so signatures cannot be checked");
    }
    if check.key.is_some() && segments.is_empty() && !is_written {
        check.fault(HEAD, 0, "there is a key, and no record: the log was emptied");
    }
    // Before the records, too: the number grows.
    let on_disk = durable(folder).unwrap_or(0);
    for (index, segment) in segments.iter().enumerate() {
        let is_last = index + 1 == segments.len();
        check.segment(segment, is_last && is_written)?;
    }
    check.end(segments.last());
    let last = check.report.last;
    if !segments.is_empty() && on_disk > last {
        check.fault(
            DURABLE,
            0,
            format!("records {} to {on_disk} were on the disk and are missing at the end", last + 1),
        );
    }
    Ok(check.report)
}

impl Check {
    fn fault(&mut self, segment: &str, line: u64, fault: impl Into<String>) {
        if self.report.faults.len() < FAULTS_MAX {
            self.report.faults.push(Fault { segment: segment.to_owned(), line, fault: fault.into() });
        } else {
            self.report.more += 1;
        }
    }

    fn read_head(&mut self, folder: &Path) -> Result<(), Error> {
        let path = folder.join(HEAD);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                if !segments(folder)?.is_empty() {
                    self.fault(HEAD, 0, "the file is missing, so a cut end cannot be found");
                }
                return Ok(());
            }
            Err(error) => return Err(Error::file(&path)(error)),
        };
        self.expect(HEAD, &bytes);
        Ok(())
    }

    /// Takes the content of a file with a head.
    fn expect(&mut self, file: &str, bytes: &[u8]) {
        let head = Head::parse(bytes);
        let Some((head, statement)) = head.as_ref().and_then(|head| Some((head, head.statement()?))) else {
            return self.fault(file, 1, "not a signed head");
        };
        if let Some(fault) = self.signature(head, &statement) {
            self.fault(file, 1, fault);
        }
        self.heads.push(Expected { file: file.to_owned(), statement, seen: false });
    }

    /// Returns the fault of a signature.
    fn signature(&self, head: &Head, statement: &Statement) -> Option<String> {
        let key = self.key.as_ref()?;
        if statement.key != key.name() {
            return Some(format!(
                "signed with the key {}, not with {}",
                Text::name(&statement.key).as_str(),
                key.name()
            ));
        }
        (!key.has_signed(head)).then(|| "the signature is wrong".to_owned())
    }

    fn segment(&mut self, segment: &Segment, is_written: bool) -> Result<(), Error> {
        let name = segment.name();
        let mut lines = Lines::open(segment)?;
        self.report.segments += 1;
        while let Some(raw) = lines.next()? {
            if !raw.complete {
                // The writer may not have finished it.
                if !is_written {
                    self.fault(&name, lines.number, "the line is incomplete");
                }
                break;
            }
            self.line(&name, lines.number, segment.first, &raw);
        }
        Ok(())
    }

    fn line(&mut self, name: &str, number: u64, first: u64, raw: &Raw) {
        let Some(line) = parse(&raw.bytes) else {
            self.fault(name, number, "not a record");
            // Its number is known from its place.
            self.before = self.before.map(|(seq, hash)| (seq + 1, hash));
            return;
        };
        if !line.is_intact() {
            self.fault(name, number, format!("record {}: the event does not have this hash", line.seq));
        }
        let expected = match self.before {
            Some((seq, _)) => seq + 1,
            None => first,
        };
        match self.before {
            _ if line.seq > expected => {
                let missing = format!("records {expected} to {} are missing before this line", line.seq - 1);
                self.fault(name, number, missing);
            }
            _ if line.seq < expected => {
                self.fault(name, number, format!("record {} where {expected} is due", line.seq));
            }
            Some((_, hash)) if hash != line.prev => {
                let fault = format!("record {}: `prev` is not the hash of the record before", line.seq);
                self.fault(name, number, fault);
            }
            None if line.seq == 1 && line.prev != Hash::default() => {
                self.fault(name, number, "record 1: `prev` is not zero");
            }
            _ => {}
        }
        if number == 1 && line.seq != first {
            self.fault(name, number, format!("record {} in a segment that begins with {first}", line.seq));
        }
        if self.report.records == 0 {
            self.report.first = line.seq;
        }
        self.own_event(name, number, line.event);
        self.compare_heads(name, number, line.seq, line.hash);
        self.before = Some((line.seq, line.hash));
        self.report.records += 1;
        self.report.last = line.seq;
    }

    /// Takes an event of the log itself.
    fn own_event(&mut self, name: &str, number: u64, event: &[u8]) {
        // All others are skipped without parsing.
        if !event.starts_with(br#"{"class_uid":0,"#) {
            return;
        }
        let Some(own) = serde_json::from_slice::<Own>(event).ok().filter(|own| own.class_uid == 0) else {
            return;
        };
        self.removed = self.removed.max(own.unmapped.removed_last.unwrap_or(0));
        let (Some(text), Some(signature)) = (own.unmapped.statement, own.unmapped.signature) else { return };
        let head = Head { text, signature };
        let Some(statement) = head.statement() else {
            self.fault(name, number, "not a signed head");
            return;
        };
        if let Some(fault) = self.signature(&head, &statement) {
            self.fault(name, number, fault);
        } else if let Some((seq, hash)) = self.before {
            if (statement.seq, statement.hash) == (seq, hash) {
                self.report.signed = seq;
            } else {
                self.fault(name, number, format!("the head signs another record {}", statement.seq));
            }
        }
    }

    /// Compares a record with the heads of files.
    fn compare_heads(&mut self, name: &str, number: u64, seq: u64, hash: Hash) {
        let mut others = Vec::new();
        for head in self.heads.iter_mut().filter(|head| head.statement.seq == seq) {
            head.seen = true;
            match head.statement.hash == hash {
                true => self.report.signed = self.report.signed.max(seq),
                false => others.push(format!("record {seq}: the file `{}` signs another one", head.file)),
            }
        }
        others.into_iter().for_each(|fault| self.fault(name, number, fault));
    }

    fn end(&mut self, last: Option<&Segment>) {
        let first = self.report.first;
        if first > 1 && self.removed + 1 < first {
            let name = "first segment";
            let from = self.removed + 1;
            self.fault(
                name,
                0,
                format!("records {from} to {} are missing, and no record says why", first - 1),
            );
        }
        let end = self.report.last;
        for head in std::mem::take(&mut self.heads) {
            let signed = head.statement.seq;
            if signed > end {
                let name = last.map_or(HEAD.to_owned(), Segment::name);
                let lines = format!("records {} to {signed} are missing at the end of the log", end + 1);
                self.fault(&name, 0, lines);
            } else if !head.seen && self.report.records > 0 && signed >= first {
                self.fault(&head.file, 1, format!("record {signed}, which it signs, is not in the log"));
            }
        }
    }
}
