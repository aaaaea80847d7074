//! Authorities of sandboxes on disk, sealed under a key of the machine, and placeholders, which are derived from it.
//!
//! The name of the sandbox is part of what is authenticated, so one file cannot stand in for another one. Files are not
//! synchronized: after a loss of power every sandbox starts again, and one whose file is damaged gets a new authority.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::aead::{AES_256_GCM, Aad, Nonce, RandomizedNonceKey};
use aws_lc_rs::hmac;
use hutch_egress::{AuthorityKeys, DAYS};
use hutch_policy::derived_placeholder;
use serde::{Deserialize, Serialize};

use super::CredentialKey;

/// File of the machine's key, and its bytes.
const KEY: &str = "machine.key";
const KEY_BYTES: usize = 32;
/// Folder of the sealed authorities.
const AUTHORITIES: &str = "authorities";
/// Folder of the times at which sandboxes first had credentials, and maximum bytes of a file in it.
const BEGUN: &str = "begun";
const BEGUN_BYTES: u64 = 1 << 20;
/// Maximum bytes of a sealed authority.
const SEALED_BYTES: u64 = 16 << 10;
/// Bytes of the nonce before the sealed bytes.
const NONCE_BYTES: usize = 12;
/// First byte of a file, and start of what is authenticated with it: the layout.
const VERSION: u8 = 1;
/// Days before its end from which on an authority is renewed at the start of a Pod.
const RENEW_DAYS: i64 = 10;
/// Maximum bytes of the name of a sandbox.
const NAME_BYTES: usize = 200;

/// The authorities.
pub(super) struct Store {
    folder: PathBuf,
    begun: PathBuf,
    key: RandomizedNonceKey,
    /// Key from which placeholders are derived.
    placeholders: hmac::Key,
}

/// An authority as it is sealed.
#[derive(Serialize, Deserialize)]
struct Kept {
    keys: AuthorityKeys,
    /// Time at which it was made, in seconds since 1970.
    made: u64,
}

fn invalid(message: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, message)
}

impl Store {
    /// Opens the store in a folder. Makes the machine's key if it is absent.
    pub(super) fn open(folder: &Path) -> io::Result<Store> {
        let file = folder.join(KEY);
        let key = match std::fs::read(&file) {
            Ok(key) => key,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let mut key = [0; KEY_BYTES];
                aws_lc_rs::rand::fill(&mut key).map_err(|_| io::Error::other("no randomness"))?;
                write(&file, &key, true)?;
                // Without it, nothing that is sealed can be opened.
                std::fs::File::open(folder)?.sync_all()?;
                key.to_vec()
            }
            Err(error) => return Err(error),
        };
        let derived = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), b"placeholders of credentials");
        let placeholders = hmac::Key::new(hmac::HMAC_SHA256, derived.as_ref());
        let key = RandomizedNonceKey::new(&AES_256_GCM, &key).map_err(|_| {
            let length = key.len();
            invalid(format!(
                "{KEY}: {length} bytes are no key; restore it, or remove it to give all sandboxes new authorities"
            ))
        })?;
        let (folder, begun) = (folder.join(AUTHORITIES), folder.join(BEGUN));
        std::fs::create_dir_all(&folder)?;
        std::fs::create_dir_all(&begun)?;
        Ok(Store { folder, begun, key, placeholders })
    }

    /// Returns the names of all sandboxes that have an authority.
    pub(super) fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in self.folder.read_dir()? {
            let name = entry?.file_name().into_string().unwrap_or_default();
            if check(&name).is_ok() {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// Returns the authority of a sandbox. Makes one if it has none, or one that ends soon.
    pub(super) fn authority(&self, name: &str, now: SystemTime) -> io::Result<AuthorityKeys> {
        let file = self.file(name)?;
        match self.read(name, &file) {
            Ok(kept) if is_good(kept.made, now) => return Ok(kept.keys),
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                tracing::warn!(sandbox = name, %error, "an authority cannot be read and is replaced");
            }
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let keys = AuthorityKeys::create(&format!("Hutch sandbox {name}")).map_err(io::Error::other)?;
        let made = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.write(name, &file, &Kept { keys: keys.clone(), made })?;
        Ok(keys)
    }

    /// Removes the authority of a sandbox, if it has one, and everything else about it.
    pub(super) fn forget(&self, name: &str) -> io::Result<()> {
        for file in [self.file(name)?, self.begun.join(name)] {
            match std::fs::remove_file(file) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the times at which a sandbox first had credentials, in seconds since 1970: now, for new ones.
    pub(super) fn begun(&self, name: &str, keys: &[CredentialKey], now: SystemTime) -> io::Result<Vec<i64>> {
        check(name)?;
        let file = self.begun.join(name);
        let mut bytes = Vec::new();
        match std::fs::File::open(&file) {
            Ok(open) => drop(open.take(BEGUN_BYTES).read_to_end(&mut bytes)?),
            Err(error) if error.kind() == ErrorKind::NotFound => bytes.extend(b"{}"),
            Err(error) => return Err(error),
        }
        // A damaged file does not count as an empty one: credentials that have expired would begin anew.
        let mut known: BTreeMap<String, i64> = serde_json::from_slice(&bytes)
            .map_err(|error| invalid(format!("the file {BEGUN}/{name} is damaged: {error}")))?;
        let before = known.len();
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs().cast_signed();
        let of = |key: &CredentialKey| format!("{}/{}", key.policy, key.name);
        let times = keys.iter().map(|key| *known.entry(of(key)).or_insert(now)).collect();
        if known.len() > before {
            write(&file, &serde_json::to_vec(&known)?, true)?;
        }
        Ok(times)
    }

    /// Returns the placeholder of a credential of a sandbox: always the same one, so that what programs keep of it stays of
    /// use.
    pub(super) fn placeholder(&self, sandbox: &str, key: &CredentialKey) -> String {
        derived_placeholder(key.shape, |block| {
            let of = serde_json::json!([sandbox, key, block]).to_string();
            hmac::sign(&self.placeholders, of.as_bytes()).as_ref().to_vec()
        })
    }

    fn file(&self, name: &str) -> io::Result<PathBuf> {
        check(name)?;
        Ok(self.folder.join(name))
    }

    fn read(&self, name: &str, file: &Path) -> io::Result<Kept> {
        let mut bytes = Vec::new();
        std::fs::File::open(file)?.take(SEALED_BYTES).read_to_end(&mut bytes)?;
        let (version, rest) = bytes.split_first().ok_or_else(|| invalid("it is empty"))?;
        if *version != VERSION {
            return Err(invalid("it was written by another version"));
        }
        let (nonce, sealed) = rest.split_at_checked(NONCE_BYTES).ok_or_else(|| invalid("it is too short"))?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| invalid("it has no nonce"))?;
        let mut sealed = sealed.to_vec();
        let opened = self.key.open_in_place(nonce, aad(name), &mut sealed);
        let opened = opened.map_err(|_| invalid("it was not sealed for this sandbox by this machine"))?;
        serde_json::from_slice(opened).map_err(invalid)
    }

    fn write(&self, name: &str, file: &Path, kept: &Kept) -> io::Result<()> {
        let mut sealed = serde_json::to_vec(kept)?;
        let nonce = self.key.seal_in_place_append_tag(aad(name), &mut sealed);
        let nonce = nonce.map_err(|_| io::Error::other("an authority cannot be sealed"))?;
        write(file, &[&[VERSION][..], nonce.as_ref(), &sealed].concat(), false)
    }
}

/// Returns what is authenticated with a sealed authority.
fn aad(name: &str) -> Aad<Vec<u8>> {
    Aad::from([&[VERSION][..], name.as_bytes()].concat())
}

/// Checks that a name of a sandbox is the name of a file.
fn check(name: &str) -> io::Result<()> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    if name.is_empty() || name.len() > NAME_BYTES || name.starts_with('.') || !name.bytes().all(plain) {
        return Err(io::Error::new(ErrorKind::InvalidInput, "the name of a sandbox is invalid"));
    }
    Ok(())
}

/// Returns true if an authority has more time left than what calls for a new one.
fn is_good(made: u64, now: SystemTime) -> bool {
    let days = u64::try_from(DAYS - RENEW_DAYS).unwrap_or_default();
    let made = UNIX_EPOCH + Duration::from_secs(made);
    // A time in the future is one of a clock that was set back.
    made <= now && now < made + Duration::from_secs(days * 24 * 60 * 60)
}

/// Writes a file as a whole or not at all; with `durable` its content is then on the disk.
fn write(file: &Path, bytes: &[u8], durable: bool) -> io::Result<()> {
    let path = file.with_file_name(".new");
    let mut options = std::fs::OpenOptions::new();
    let mut new = options.write(true).create(true).truncate(true).mode(0o600).open(&path)?;
    new.write_all(bytes)?;
    if durable {
        new.sync_all()?;
    }
    std::fs::rename(path, file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    fn files(folder: &Path) -> Vec<PathBuf> {
        let all = folder.read_dir().unwrap().map(|entry| entry.unwrap().path());
        all.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
    }

    #[test]
    fn authority_is_kept_until_it_ends_soon_or_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let now = SystemTime::now();
        let first = store.authority("default.a", now).unwrap();
        assert_eq!(
            Store::open(folder.path()).unwrap().authority("default.a", now + 19 * DAY).unwrap(),
            first
        );
        assert_ne!(store.authority("default.b", now).unwrap(), first);
        let renewed = store.authority("default.a", now + 21 * DAY).unwrap();
        assert_ne!(renewed, first);
        assert_eq!(store.authority("default.a", now + 22 * DAY).unwrap(), renewed);
        let mut names = store.names().unwrap();
        names.sort();
        assert_eq!(names, ["default.a", "default.b"]);
        for _ in 0..2 {
            store.forget("default.a").unwrap();
        }
        assert_eq!(store.names().unwrap(), ["default.b"]);
    }

    #[test]
    fn files_are_sealed_and_cannot_be_exchanged() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let now = SystemTime::now();
        let [a, b] = ["a", "b"].map(|name| store.authority(name, now).unwrap());
        for file in files(folder.path()) {
            assert_eq!(file.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
            let bytes = std::fs::read(&file).unwrap();
            for secret in ["PRIVATE", "CERTIFICATE", "keys"] {
                assert!(!bytes.windows(secret.len()).any(|part| part == secret.as_bytes()), "{file:?}");
            }
        }
        std::fs::copy(store.file("a").unwrap(), store.file("b").unwrap()).unwrap();
        let replaced = store.authority("b", now).unwrap();
        assert!(replaced != a && replaced != b, "a file of another sandbox is not used");
        for damage in [&b""[..], &[2], &[1, 2], &[1; 40]] {
            std::fs::write(store.file("a").unwrap(), damage).unwrap();
            assert_ne!(store.authority("a", now).unwrap(), a, "{damage:?}");
        }
        std::fs::write(folder.path().join(KEY), "short").unwrap();
        let error = Store::open(folder.path()).err().unwrap().to_string();
        assert!(error.contains("machine.key: 5 bytes"), "{error}");
    }

    #[test]
    fn time_at_which_a_credential_began_is_kept_until_the_sandbox_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let shape = hutch_policy::Shape::Generic;
        let begun = |names: &[&str], second| {
            let key = |name: &&str| CredentialKey { policy: "p".into(), name: (*name).into(), shape };
            let keys: Vec<_> = names.iter().map(key).collect();
            let now = UNIX_EPOCH + Duration::from_secs(second);
            Store::open(folder.path()).unwrap().begun("default.a", &keys, now)
        };
        assert_eq!(begun(&["a"], 5).unwrap(), [5]);
        assert_eq!(begun(&["b", "a"], 9).unwrap(), [9, 5]);
        std::fs::write(folder.path().join("begun/default.a"), "{").unwrap();
        assert!(begun(&["a"], 10).is_err());
        Store::open(folder.path()).unwrap().forget("default.a").unwrap();
        assert_eq!(begun(&["a"], 11).unwrap(), [11]);
    }

    #[test]
    fn placeholder_is_of_one_credential_and_sandbox_and_stays_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let key = |policy: &str, name: &str| CredentialKey {
            policy: policy.into(),
            name: name.into(),
            shape: hutch_policy::Shape::Anthropic,
        };
        let of = |sandbox: &str, key: &CredentialKey| {
            Store::open(folder.path()).unwrap().placeholder(sandbox, key)
        };
        let first = of("default.a", &key("p", "c"));
        assert!(first.starts_with("sk-ant-api03-") && first.len() == 108, "{first}");
        assert_eq!(of("default.a", &key("p", "c")), first);
        for (sandbox, policy, name) in [
            ("default.b", "p", "c"),
            ("default.a", "q", "c"),
            ("default.a", "p", "d"),
            ("default.ap", "", "c"),
        ] {
            assert_ne!(of(sandbox, &key(policy, name)), first, "{sandbox} {policy} {name}");
        }
        let elsewhere = tempfile::tempdir().unwrap();
        assert_ne!(Store::open(elsewhere.path()).unwrap().placeholder("default.a", &key("p", "c")), first);
    }

    #[test]
    fn name_that_is_no_file_name_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        for name in ["", ".", "..", ".new", "../machine.key", "a/b", "a\0", "ä", &"a".repeat(201)] {
            assert!(store.authority(name, SystemTime::now()).is_err(), "{name:?}");
            assert!(store.forget(name).is_err(), "{name:?}");
        }
    }
}
