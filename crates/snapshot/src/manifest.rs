//! The manifest of an image: everything that is in it, with digests, and a code that only this machine's key makes.
//!
//! Nothing of it is parsed before the code has been checked. The file is one line of JSON with a fixed beginning:
//! `{"key":"<16 digits>","mac":"<64 digits>","manifest":{...}}`.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};

use hutch_image::PathSegment;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;

use crate::content::{Content, Digest, Salt, content};
use crate::digest::{self, Tree};
use crate::error::{Cause, Fault, Place};
use crate::key::{Key, hex};
use crate::name::MANIFEST;
use crate::{Error, TreeName};

/// The format that is written and read.
pub(crate) const FORMAT: u64 = 1;
/// Maximum bytes of a manifest; the facts of a Pod have most of them.
pub(crate) const MAX_BYTES: u64 = 4 << 20;
/// Parts of the line around the key's name, the code and the signed bytes.
const KEY_START: &[u8] = b"{\"key\":\"";
const MAC_START: &[u8] = b"\",\"mac\":\"";
const SIGNED_START: &[u8] = b"\",\"manifest\":";
const END: &[u8] = b"}\n";
const KEY_DIGITS: usize = 16;
const MAC_DIGITS: usize = 64;

/// Content of an image.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Manifest {
    /// Files of each container's memory.
    pub(crate) memory: BTreeMap<PathSegment, BTreeMap<PathSegment, Measured>>,
    pub(crate) trees: BTreeMap<TreeName, MeasuredTree>,
    pub(crate) facts: Value,
}

/// A file of a container's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Measured {
    pub(crate) length: u64,
    /// Salt of the key of its content.
    pub(crate) salt: Hex,
    /// Bytes that are not in pages of zeros.
    pub(crate) bytes: u64,
    pub(crate) digest: Hex,
}

/// A tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MeasuredTree {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    /// Salt of the key of its content.
    pub(crate) salt: Hex,
    pub(crate) digest: Hex,
}

impl MeasuredTree {
    /// Reads a tree of at most so many entries.
    pub(crate) fn read(key: &Key, salt: Salt, top: OwnedFd, maximum: u64) -> Result<MeasuredTree, Fault> {
        let key = key.content(&salt).map_err(|_| Fault { entry: ".".into(), cause: NO_KEY })?;
        let tree = digest::tree(top, maximum, &key)?;
        let Tree { digest, entries, bytes } = tree;
        Ok(MeasuredTree { entries, bytes, salt: Hex(salt), digest: Hex(digest) })
    }
}

impl Measured {
    /// Reads a file of this length.
    pub(crate) fn read(key: &Key, salt: Salt, file: BorrowedFd<'_>, length: u64) -> Result<Measured, Cause> {
        let key = key.content(&salt).map_err(|_| NO_KEY)?;
        let Content { digest, bytes } = content(&key, 0, file, length)?;
        Ok(Measured { length, salt: Hex(salt), bytes, digest: Hex(digest) })
    }
}

/// Returns a salt that was never used.
pub(crate) fn new_salt() -> std::io::Result<Salt> {
    let mut salt = Salt::default();
    let filled = aws_lc_rs::rand::fill(&mut salt);
    filled.map(|()| salt).map_err(|_| std::io::Error::other("no randomness"))
}

const NO_KEY: Cause = Cause::Refused("no key can be made for its content");

/// A digest or salt, written as lower-case hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hex(pub(crate) Digest);

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hex(&self.0))
    }
}

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Hex, D::Error> {
        let text = String::deserialize(deserializer)?;
        let mut digest = Digest::default();
        let invalid = || de::Error::custom("a digest is not 64 hexadecimal digits");
        if text.len() != 2 * digest.len() || !text.is_ascii() {
            return Err(invalid());
        }
        for (at, byte) in digest.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).map_err(|_| invalid())?;
        }
        // One digest has one text.
        if hex(&digest) == text { Ok(Hex(digest)) } else { Err(invalid()) }
    }
}

/// The signed part of the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Signed {
    format: u64,
    id: String,
    memory: BTreeMap<String, BTreeMap<String, Measured>>,
    uppers: BTreeMap<String, MeasuredTree>,
    volumes: BTreeMap<String, MeasuredTree>,
    facts: Value,
}

/// Fields of each format.
#[derive(Deserialize)]
struct AnyFormat {
    format: u64,
}

/// Returns the bytes of the file, and the manifest as it is read from them: what cannot be read is not written.
pub(crate) fn write(key: &Key, id: &PathSegment, manifest: &Manifest) -> Result<(Vec<u8>, Manifest), Error> {
    let place = Place::new(id, &MANIFEST);
    let text = |name: &PathSegment| name.as_str().to_owned();
    let (mut uppers, mut volumes) = (BTreeMap::new(), BTreeMap::new());
    for (name, measured) in &manifest.trees {
        match name {
            TreeName::Upper(container) => uppers.insert(text(container), *measured),
            TreeName::Volume(volume) => volumes.insert(text(volume), *measured),
        };
    }
    let files = |files: &BTreeMap<PathSegment, Measured>| {
        files.iter().map(|(name, measured)| (text(name), *measured)).collect()
    };
    let memory = manifest.memory.iter().map(|(container, found)| (text(container), files(found))).collect();
    let facts = manifest.facts.clone();
    let signed = Signed { format: FORMAT, id: text(id), memory, uppers, volumes, facts };
    let signed = serde_json::to_vec(&signed).map_err(|error| place.refused("facts", error.to_string()))?;
    let bytes = seal(key, &signed);
    if bytes.len() as u64 > MAX_BYTES {
        return Err(place.refused("facts", "the manifest would be larger than 4 MiB"));
    }
    match read(key, id, &bytes) {
        Ok(again) => Ok((bytes, again)),
        Err(error) => Err(place.refused("facts", error.to_string())),
    }
}

/// Puts the code of the key around bytes.
pub(crate) fn seal(key: &Key, signed: &[u8]) -> Vec<u8> {
    let mac = key.sign(signed);
    let parts = [KEY_START, key.id().as_bytes(), MAC_START, mac.as_bytes(), SIGNED_START, signed, END];
    parts.concat()
}

/// Checks and reads the bytes of a file that lies in the folder of this image.
pub(crate) fn read(key: &Key, id: &PathSegment, bytes: &[u8]) -> Result<Manifest, Error> {
    let place = Place::new(id, &MANIFEST);
    let signed = unseal(key, &place, bytes)?;
    // From here on, these are bytes that this machine wrote.
    let unreadable = |error: serde_json::Error| place.tampered(format!("it cannot be read: {error}"));
    let AnyFormat { format: found } = serde_json::from_slice(signed).map_err(unreadable)?;
    if found != FORMAT {
        return Err(Error::Old { image: id.to_string(), found, supported: FORMAT });
    }
    let signed: Signed = serde_json::from_slice(signed).map_err(unreadable)?;
    if signed.id != id.as_str() {
        return Err(Error::Swapped { image: id.to_string(), named: signed.id });
    }
    let segment = |name: String| {
        PathSegment::new(name).ok_or_else(|| place.tampered("a name in it is not one component of a path"))
    };
    let mut memory = BTreeMap::new();
    for (container, files) in signed.memory {
        let mut found = BTreeMap::new();
        for (name, measured) in files {
            found.insert(segment(name)?, measured);
        }
        memory.insert(segment(container)?, found);
    }
    let mut trees = BTreeMap::new();
    for (container, measured) in signed.uppers {
        trees.insert(TreeName::Upper(segment(container)?), measured);
    }
    for (volume, measured) in signed.volumes {
        trees.insert(TreeName::Volume(segment(volume)?), measured);
    }
    Ok(Manifest { memory, trees, facts: signed.facts })
}

/// Checks the code, and returns the bytes that it is for.
fn unseal<'a>(key: &Key, place: &Place, bytes: &'a [u8]) -> Result<&'a [u8], Error> {
    let bytes = bytes.strip_suffix(END).ok_or_else(|| place.truncated("its end is absent"))?;
    let other = || place.tampered("it does not begin as a manifest does");
    let rest = bytes.strip_prefix(KEY_START).ok_or_else(other)?;
    let (key_id, rest) = rest.split_at_checked(KEY_DIGITS).ok_or_else(other)?;
    let rest = rest.strip_prefix(MAC_START).ok_or_else(other)?;
    let (mac, rest) = rest.split_at_checked(MAC_DIGITS).ok_or_else(other)?;
    let signed = rest.strip_prefix(SIGNED_START).ok_or_else(other)?;
    if key_id != key.id().as_bytes() {
        return Err(Error::Foreign { image: place.image.clone() });
    }
    if !key.verify(signed, mac) {
        return Err(place.tampered("its authentication code is not the one of its bytes"));
    }
    Ok(signed)
}
