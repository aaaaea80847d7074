//! Signed heads: the statement that the log reaches up to a record.
//!
//! A statement is one line of ASCII, `hutch-audit-head-v1 SEQ HASH TIME KEY`, so that other programs can check it. `TIME` is
//! in milliseconds, `KEY` is the name of the key: the first bytes of the SHA-256 of the public key.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use aws_lc_rs::digest;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustix::fs::{Mode, OFlags};

use crate::Error;
use crate::hex::hex;
use crate::line::Hash;

/// First word of a statement.
const VERSION: &str = "hutch-audit-head-v1";
/// File of the private key, in PKCS #8.
const PRIVATE: &str = "key.pk8";
/// File of the public key, in PEM.
pub(crate) const PUBLIC: &str = "key.pub";
/// Everything before the 32 bytes of an Ed25519 key in its SubjectPublicKeyInfo.
const INFO: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
/// Maximum bytes of a head that is parsed.
const HEAD_MAX: usize = 512;

/// Statement of a head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// Last record.
    pub seq: u64,
    /// Its hash.
    pub hash: Hash,
    /// Time of the signature, milliseconds since 1970.
    pub time: u64,
    /// Name of the key.
    pub key: String,
}

/// A statement with its signature, as text: both as they are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Text of the statement.
    pub text: String,
    /// Signature in hexadecimal.
    pub signature: String,
}

impl Head {
    /// Returns the statement, or `None` if it is malformed.
    pub fn statement(&self) -> Option<Statement> {
        let mut words = self.text.split(' ');
        let mut next = || words.next();
        if next()? != VERSION {
            return None;
        }
        let statement = Statement {
            seq: next()?.parse().ok()?,
            hash: Hash::parse(next()?.as_bytes())?,
            time: next()?.parse().ok()?,
            key: next()?.to_owned(),
        };
        // A statement has one form.
        (text(&statement) == self.text).then_some(statement)
    }

    /// Parses the line of the file `head`.
    pub fn parse(line: &[u8]) -> Option<Head> {
        let line = std::str::from_utf8(line.get(..line.len().min(HEAD_MAX))?).ok()?.strip_suffix('\n')?;
        let (text, signature) = line.rsplit_once(' ')?;
        let head = Head { text: text.to_owned(), signature: signature.to_owned() };
        head.statement().is_some().then_some(head)
    }

    /// Returns the line of the file `head`.
    pub(crate) fn line(&self) -> String {
        format!("{} {}\n", self.text, self.signature)
    }
}

fn text(statement: &Statement) -> String {
    let Statement { seq, hash, time, key } = statement;
    format!("{VERSION} {seq} {hash} {time} {key}")
}

/// Public key of a log.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// Reads a key in PEM.
    ///
    /// # Errors
    /// The file cannot be read or is not such a key.
    pub fn read(path: &Path) -> Result<PublicKey, Error> {
        let text = fs::read_to_string(path).map_err(Error::file(path))?;
        let base64: String = text.lines().filter(|line| !line.starts_with("-----")).map(str::trim).collect();
        let bytes = BASE64_STANDARD.decode(base64).unwrap_or_default();
        let key = bytes.strip_prefix(&INFO).and_then(|key| key.try_into().ok());
        key.map(PublicKey).ok_or_else(|| Error::Key(path.to_owned()))
    }

    /// Returns its name.
    pub fn name(&self) -> String {
        hex(&digest::digest(&digest::SHA256, &self.0).as_ref()[..8])
    }

    fn pem(&self) -> String {
        let bytes = [&INFO[..], &self.0].concat();
        format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", BASE64_STANDARD.encode(bytes))
    }

    /// Returns true if this key has signed the head.
    pub fn has_signed(&self, head: &Head) -> bool {
        let digits = head.signature.as_bytes();
        let halves = (digits.get(..64), digits.get(64..));
        let (Some(first), Some(second)) = halves else { return false };
        let (Some(first), Some(second)) = (Hash::parse(first), Hash::parse(second)) else { return false };
        let signature = [first.0, second.0].concat();
        UnparsedPublicKey::new(&ED25519, &self.0).verify(head.text.as_bytes(), &signature).is_ok()
    }
}

/// Key that signs the heads of a log.
pub(crate) struct SigningKey {
    pair: Ed25519KeyPair,
    name: String,
}

impl SigningKey {
    /// Opens the key of a log, or makes one.
    pub(crate) fn open(folder: &Path) -> Result<SigningKey, Error> {
        let path = folder.join(PRIVATE);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
                let made = made.map_err(|_| Error::Key(path.clone()))?;
                replace(folder, PRIVATE, made.as_ref())?;
                made.as_ref().to_vec()
            }
            Err(error) => return Err(Error::file(&path)(error)),
        };
        let pair = Ed25519KeyPair::from_pkcs8(&bytes).map_err(|_| Error::Key(path.clone()))?;
        let public = pair.public_key().as_ref().try_into().map_err(|_| Error::Key(path))?;
        let public = PublicKey(public);
        let known = PublicKey::read(&folder.join(PUBLIC)).ok();
        if known.as_ref() != Some(&public) {
            replace(folder, PUBLIC, public.pem().as_bytes())?;
        }
        Ok(SigningKey { pair, name: public.name() })
    }

    /// Signs that the log reaches up to a record.
    pub(crate) fn sign(&self, seq: u64, hash: Hash, time: u64) -> Head {
        let text = text(&Statement { seq, hash, time, key: self.name.clone() });
        let signature = hex(self.pair.sign(text.as_bytes()).as_ref());
        Head { text, signature }
    }
}

/// Replaces a small file of a folder, so that a crash leaves the old or the new content. Only its owner may read it.
pub(crate) fn replace(folder: &Path, name: &str, content: &[u8]) -> Result<(), Error> {
    let (path, new) = (folder.join(name), folder.join(format!("{name}.new")));
    let write = || -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(&new, flags, Mode::RUSR | Mode::WUSR)?;
        let mut file = fs::File::from(file);
        file.write_all(content)?;
        file.sync_data()?;
        fs::rename(&new, &path)
    };
    write().map_err(Error::file(&path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_is_checked_by_the_public_key_alone() {
        let folder = tempfile::tempdir().unwrap();
        let key = SigningKey::open(folder.path()).unwrap();
        let public = PublicKey::read(&folder.path().join(PUBLIC)).unwrap();
        let head = key.sign(5, Hash([1; 32]), 1_700_000_000_000);
        assert!(public.has_signed(&head));
        assert_eq!(Head::parse(head.line().as_bytes()), Some(head.clone()));
        let statement = head.statement().unwrap();
        assert_eq!((statement.seq, &statement.key), (5, &public.name()));
        let other = Head { text: head.text.replacen(" 5 ", " 6 ", 1), ..head.clone() };
        assert!(!public.has_signed(&other) && other.statement().is_some());
        assert!(!public.has_signed(&Head { signature: head.signature.replace('a', "b"), ..head }));
        // The second opening finds the same key.
        assert_eq!(SigningKey::open(folder.path()).unwrap().name, public.name());
    }

    #[test]
    fn public_key_is_a_key_for_openssl() {
        hutch_testkit::require!(openssl);
        let folder = tempfile::tempdir().unwrap();
        let key = SigningKey::open(folder.path()).unwrap();
        let head = key.sign(5, Hash([1; 32]), 7);
        let file = |name: &str| folder.path().join(name);
        fs::write(file("text"), &head.text).unwrap();
        let bytes: Vec<u8> =
            (0..64).map(|i| u8::from_str_radix(&head.signature[2 * i..2 * i + 2], 16).unwrap()).collect();
        fs::write(file("signature"), bytes).unwrap();
        let verify = || {
            let mut command = std::process::Command::new("openssl");
            command.args(["pkeyutl", "-verify", "-pubin", "-rawin", "-inkey"]).arg(file(PUBLIC));
            command.arg("-in").arg(file("text")).arg("-sigfile").arg(file("signature"));
            command.output().unwrap()
        };
        let output = verify();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fs::write(file("text"), head.text.replace(" 5 ", " 6 ")).unwrap();
        assert!(!verify().status.success());
    }
}
