//! Imports an image from an archive of `docker save`, or from an OCI layout as a folder or an archive.
//!
//! The source is untrusted. Each regular file that is needed goes into the store under the digest that it has, so that no
//! path of the source names a file here. The image gets its name after all its blobs are there, and after the caller has
//! unpacked them; without a name they are removed by the next prune.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use hutch_archive::{AbsolutePaths, Entry, Kind, ReadError, Unpacked};
use rustix::fs::{FlockOperation, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::Digest as _;

use crate::choice::choose;
use crate::config::read_text;
use crate::error::shorten;
use crate::layout::{Layout, Stored};
use crate::manifest::{Blob, MAX_IMAGE, MAX_LAYER, MAX_LAYERS, MAX_MANIFEST, Manifest, unsupported};
use crate::partial::check_reserve;
use crate::platform::Platform;
use crate::resolve::MAX_DEPTH;
use crate::{Digest, Error, Fetched, ImageName};

/// Limits of an archive.
const LIMITS: hutch_archive::Limits = hutch_archive::Limits {
    entries: 10_000,
    header_bytes: 1 << 20,
    content_bytes: MAX_IMAGE,
    absolute: AbsolutePaths::Refused,
};
/// Maximum images of an archive of `docker save`.
const MAX_IMAGES: usize = 1024;
/// Maximum names that an image keeps.
const MAX_NAMES: usize = 64;
/// First bytes of compressed content.
const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Bytes that are copied at once.
const CHUNK: usize = 256 << 10;
/// Ending of files whose digest is not known yet. Files with an ending are removed if their process has ended.
const ENDING: &str = ".import";
/// Annotations with the name of an image, the more exact one first.
const NAMES: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];

/// Imports an image into the store. It will have the name, or those that the source has for it. `progress` receives the bytes
/// that were read, and those that there are.
///
/// # Errors
/// When the source is not valid, has several images or none for this machine, or the store cannot be written.
pub fn import(
    store: &Path,
    from: &Path,
    name: Option<&ImageName>,
    progress: &dyn Fn(u64, u64),
) -> Result<Fetched, Error> {
    let layout = Layout::open(store)?;
    let pulling = layout.importing()?;
    let found = std::fs::metadata(from).map_err(Error::file("open", from))?;
    let mut source = match found.is_dir() {
        true => Source::open_folder(&layout, from, progress)?,
        false => Source::read_archive(&layout, from, progress)?,
    };
    let (stored, own_names) = match source.document("index.json")? {
        Some(index) if source.find("oci-layout")?.is_some() => source.oci(&index)?,
        _ => match source.document("manifest.json")? {
            Some(list) => source.docker(&list)?,
            None => {
                return Err(unsupported(
                    "it has neither oci-layout with index.json, nor manifest.json of docker save",
                ));
            }
        },
    };
    let mut names = match name {
        Some(name) => vec![name.clone()],
        None => imported_names(&own_names)?,
    };
    if names.is_empty() {
        return Err(unsupported("it has no name: hutch image import FILE NAME gives it one"));
    }
    let name = names.remove(0);
    Ok(Fetched { layout, name, others: names, stored, evidence: None, by_digest: false, _pulling: pulling })
}

/// Returns the names below `hutch.local` for those of registries, each once.
fn imported_names(own: &[String]) -> Result<Vec<ImageName>, Error> {
    if own.len() > MAX_NAMES {
        let limit = format!("{MAX_NAMES} names; hutch image import FILE NAME gives it one");
        return Err(Error::TooLarge { what: "the list of its names".into(), limit });
    }
    let mut names = Vec::with_capacity(own.len());
    // A digest is no name that the image has here: `latest` would be taken from another image.
    let tagged: Vec<&String> = own.iter().filter(|own| !is_digest(own)).collect();
    let own = if tagged.is_empty() { own.iter().take(1).collect() } else { tagged };
    for own in own {
        let name = imported_name(own)?;
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(names)
}

fn is_digest(own: &str) -> bool {
    own.starts_with("sha256:")
        || ImageName::parse(own).is_ok_and(|name| name.digest().is_some() && name.tag().is_none())
}

/// Returns the name below `hutch.local` for one of a registry.
fn imported_name(own: &str) -> Result<ImageName, Error> {
    let own = ImageName::parse(own)?;
    let path = own.repository().strip_prefix("library/").unwrap_or(own.repository());
    ImageName::parse_imported(&format!("{path}:{}", own.tag().unwrap_or("latest")))
}

/// Image of `manifest.json`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// The source of an import.
struct Source<'a> {
    layout: &'a Layout,
    place: Place,
    /// Bytes that were read of a folder. Those of an archive are counted by its reader.
    bytes: u64,
    /// Bytes of the image of a folder, if they are known.
    size: u64,
    progress: &'a dyn Fn(u64, u64),
}

enum Place {
    /// Files of an archive, which are in the store.
    Archive(BTreeMap<String, Blob>),
    Folder(OwnedFd),
}

impl<'a> Source<'a> {
    fn open_folder(
        layout: &'a Layout,
        path: &Path,
        progress: &'a dyn Fn(u64, u64),
    ) -> Result<Source<'a>, Error> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(path, flags, Mode::empty()).map_err(Error::file("open", path))?;
        Ok(Source { layout, place: Place::Folder(folder), bytes: 0, size: 0, progress })
    }

    fn read_archive(
        layout: &'a Layout,
        path: &Path,
        progress: &'a dyn Fn(u64, u64),
    ) -> Result<Source<'a>, Error> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::empty()).map_err(Error::file("open", path))?;
        let mut file = File::from(file);
        if !file.metadata().is_ok_and(|found| found.is_file()) {
            return Err(unsupported("it is neither a regular file nor a folder"));
        }
        let start = first_bytes(&mut file).map_err(Error::file("read", path))?;
        if start == ZSTD {
            return Err(unsupported("it is compressed with zstd; supported are tar and gzip"));
        }
        let size = file.metadata().map_err(Error::file("read", path))?.len();
        let file = BufReader::with_capacity(CHUNK, Counted { inner: file, done: 0, size, progress });
        let from: Box<dyn Read + '_> = match start.starts_with(&GZIP) {
            true => Box::new(Unpacked::new(flate2::bufread::MultiGzDecoder::new(file), size)),
            false => Box::new(file),
        };
        let mut files = BTreeMap::new();
        hutch_archive::read(from, LIMITS, |entry| keep_entry(layout, entry, &mut files))
            .map_err(|Failed(error)| error)?;
        Ok(Source { layout, place: Place::Archive(files), bytes: 0, size, progress })
    }

    /// Stores a file of the source; `None` if it is missing.
    fn find(&mut self, path: &str) -> Result<Option<Blob>, Error> {
        let folder = match &self.place {
            Place::Archive(files) => return Ok(files.get(path.trim_start_matches("./")).cloned()),
            Place::Folder(folder) => folder,
        };
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let opened = rustix::fs::openat2(folder, path, flags, Mode::empty(), within);
        let shown = || Path::new("a file of the image").to_owned();
        let mut file = match opened {
            Ok(file) => File::from(file),
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(errno) => return Err(Error::file("open", &shown())(errno)),
        };
        if !file.metadata().is_ok_and(|found| found.is_file()) {
            return Err(unsupported(&format!("{:?} is not a regular file", shorten(path))));
        }
        let mut new = New::start(self.layout)?;
        let mut piece = vec![0; CHUNK];
        loop {
            let count = file.read(&mut piece).map_err(Error::file("read", &shown()))?;
            if count == 0 {
                return new.finish().map(Some);
            }
            self.bytes += count as u64;
            if self.bytes > MAX_IMAGE {
                return Err(Error::TooLarge {
                    what: "the image".into(),
                    limit: format!("{MAX_IMAGE} bytes"),
                });
            }
            new.push(&piece[..count])?;
            if self.size > 0 {
                (self.progress)(self.bytes.min(self.size), self.size);
            }
        }
    }

    /// Reads a small file of the source.
    fn document(&mut self, path: &str) -> Result<Option<Vec<u8>>, Error> {
        self.find(path)?.map(|blob| self.read(&blob)).transpose()
    }

    fn read(&self, blob: &Blob) -> Result<Vec<u8>, Error> {
        let limit = MAX_MANIFEST as u64;
        if blob.size > limit {
            return Err(Error::TooLarge { what: "a document".into(), limit: format!("{limit} bytes") });
        }
        read_text(&self.layout.blob(&blob.digest), limit).map(String::into_bytes)
    }

    /// Stores a blob of a layout, and checks that it is what its descriptor promises.
    fn blob(&mut self, promised: &Blob) -> Result<(), Error> {
        let path = format!("blobs/sha256/{}", promised.digest.hex());
        match self.find(&path)? {
            Some(found) if found == *promised => Ok(()),
            Some(_) => Err(unsupported(&format!("{path} has another digest or size"))),
            None => Err(unsupported(&format!("{path} is missing, or is a link"))),
        }
    }

    /// Finds the image of an OCI layout.
    fn oci(&mut self, index: &[u8]) -> Result<(Stored, Vec<String>), Error> {
        let (mut document, mut pulled) = (index.to_vec(), None);
        let mut kind = Some("application/vnd.oci.image.index.v1+json");
        let mut blob = None;
        for _ in 0..=MAX_DEPTH + 1 {
            match Manifest::parse(&document, kind)? {
                Manifest::Image(image) => {
                    let Some(manifest) = blob else { break };
                    let layers: u64 = image.layers.iter().map(|layer| layer.size).sum();
                    self.size = self.bytes.saturating_add(image.config.size).saturating_add(layers);
                    self.blob(&image.config)?;
                    self.layout.check_platform(&image.config)?;
                    image.layers.iter().try_for_each(|layer| self.blob(layer))?;
                    let media_type = image.media_type.into();
                    let pulled = pulled.unwrap_or_else(|| Digest::of(&document));
                    let own_names = own_names(index, &pulled)?;
                    return Ok((Stored { pulled, manifest, media_type }, own_names));
                }
                Manifest::Index(mut entries) => {
                    // An image of several names has an entry for each.
                    let mut seen = BTreeSet::new();
                    entries.retain(|entry| seen.insert(entry.blob.digest.to_string()));
                    let next = choose(&entries, &Platform::of_this_machine())?.blob.clone();
                    self.blob(&next)?;
                    document = self.read(&next)?;
                    pulled.get_or_insert_with(|| next.digest.clone());
                    kind = media_type_of(&document);
                    blob = Some(next);
                }
            }
        }
        Err(Error::TooLarge { what: "the depth of its indexes".into(), limit: MAX_DEPTH.to_string() })
    }

    /// Makes the manifest for the image of an archive of `docker save`.
    fn docker(&mut self, list: &[u8]) -> Result<(Stored, Vec<String>), Error> {
        let list: Vec<Saved> =
            serde_json::from_slice(list).map_err(|_| unsupported("its manifest.json is not valid"))?;
        if list.len() > MAX_IMAGES {
            return Err(Error::TooLarge { what: "its list".into(), limit: format!("{MAX_IMAGES} images") });
        }
        let [saved] = &list[..] else { return Err(several(list.len())) };
        if saved.layers.len() > MAX_LAYERS {
            return Err(Error::TooLarge { what: "the image".into(), limit: format!("{MAX_LAYERS} layers") });
        }
        let config = self.needed(&saved.config)?;
        if config.size > MAX_MANIFEST as u64 {
            let limit = format!("{MAX_MANIFEST} bytes");
            return Err(Error::TooLarge { what: "its configuration".into(), limit });
        }
        self.layout.check_platform(&config)?;
        let mut layers = Vec::new();
        for path in &saved.layers {
            let layer = self.needed(path)?;
            let file = self.layout.blob(&layer.digest);
            let start = File::open(&file).and_then(|mut file| first_bytes(&mut file));
            let start = start.map_err(Error::file("read", &file))?;
            let kind = match start {
                ZSTD => "application/vnd.oci.image.layer.v1.tar+zstd",
                _ if start.starts_with(&GZIP) => "application/vnd.oci.image.layer.v1.tar+gzip",
                _ => "application/vnd.oci.image.layer.v1.tar",
            };
            let (digest, size) = (layer.digest.to_string(), layer.size);
            layers.push(json!({"mediaType": kind, "digest": digest, "size": size}));
        }
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {
                "mediaType": "application/vnd.oci.image.config.v1+json",
                "digest": config.digest.to_string(),
                "size": config.size,
            },
            "layers": layers,
        });
        let text = manifest.to_string().into_bytes();
        // Its bounds are those of every manifest.
        let Manifest::Image(image) = Manifest::parse(&text, None)? else { return Err(several(0)) };
        let manifest = self.layout.put(&text)?;
        let (pulled, media_type) = (manifest.digest.clone(), image.media_type.into());
        let own_names = saved.repo_tags.clone().unwrap_or_default();
        Ok((Stored { pulled, manifest, media_type }, own_names))
    }

    fn needed(&mut self, path: &str) -> Result<Blob, Error> {
        let missing = || unsupported(&format!("its file {:?} is missing, or is a link", shorten(path)));
        self.find(path)?.ok_or_else(missing)
    }
}

/// Returns the media type of a document that names none: an index has `manifests`.
fn media_type_of(document: &[u8]) -> Option<&'static str> {
    let document: Value = serde_json::from_slice(document).ok()?;
    Some(match document.get("manifests") {
        Some(_) => "application/vnd.oci.image.index.v1+json",
        None => "application/vnd.oci.image.manifest.v1+json",
    })
}

/// Returns the names that an index has for an image; a tag alone is no name. Several tagged images are refused.
fn own_names(index: &[u8], image: &Digest) -> Result<Vec<String>, Error> {
    let index: Value =
        serde_json::from_slice(index).map_err(|_| unsupported("its index.json is not valid"))?;
    let entries = index["manifests"].as_array().map(Vec::as_slice).unwrap_or_default();
    let name = |key: &str, entry: &Value| entry["annotations"][key].as_str().map(str::to_owned);
    let tagged: BTreeSet<&str> = entries
        .iter()
        .filter(|entry| NAMES.iter().any(|key| name(key, entry).is_some()))
        .filter_map(|entry| entry["digest"].as_str())
        .collect();
    if tagged.len() > 1 {
        return Err(several(tagged.len()));
    }
    let image = image.to_string();
    let of_image = || entries.iter().filter(|entry| entry["digest"].as_str() == Some(&*image));
    let exact =
        |entry| NAMES.iter().filter_map(|key| name(key, entry)).find(|name| name.contains([':', '/']));
    Ok(of_image().filter_map(exact).collect())
}

/// Stores a regular file of an archive under its digest. Links, folders and devices are left out.
fn keep_entry(
    layout: &Layout,
    entry: &mut Entry<'_, Box<dyn Read + '_>>,
    files: &mut BTreeMap<String, Blob>,
) -> Result<(), Failed> {
    match entry.kind() {
        Kind::File => {}
        Kind::SparseFile => return Err(Failed(unsupported("an entry is a sparse file"))),
        _ => return Ok(()),
    }
    let mut new = New::start(layout)?;
    entry.content(|piece| new.push(piece).map_err(Failed))?;
    let blob = new.finish()?;
    let path = entry.path().to_str().ok_or_else(|| unsupported("a path is not UTF-8"))?;
    if files.insert(path.to_owned(), blob).is_some() {
        return Err(Failed(unsupported("two entries have one path")));
    }
    Ok(())
}

/// Failure while an archive is read.
struct Failed(Error);

impl From<ReadError> for Failed {
    fn from(error: ReadError) -> Failed {
        match error {
            ReadError::Stream(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                Failed(unsupported(&shorten(&error.to_string())))
            }
            // The reader repeats content.
            ReadError::Stream(error) if error.raw_os_error().is_none() => {
                Failed(unsupported("it is not a tar archive, or a damaged one"))
            }
            error => Failed(unsupported(&shorten(&error.to_string()))),
        }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed(error)
    }
}

/// A file that gets the name of its digest.
struct New<'a> {
    layout: &'a Layout,
    file: tempfile::NamedTempFile,
    hash: sha2::Sha256,
    size: u64,
}

impl<'a> New<'a> {
    fn start(layout: &'a Layout) -> Result<New<'a>, Error> {
        let folder = layout.partials();
        // Until it is locked, the removal of abandoned files must wait.
        let _lock = layout.lock()?;
        let file = tempfile::Builder::new().prefix("new").suffix(ENDING).tempfile_in(&folder);
        let file = file.map_err(Error::file("make a file in", &folder))?;
        rustix::fs::flock(file.as_file(), FlockOperation::NonBlockingLockExclusive)
            .map_err(Error::file("lock", file.path()))?;
        Ok(New { layout, file, hash: sha2::Sha256::new(), size: 0 })
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.size += bytes.len() as u64;
        if self.size > MAX_LAYER {
            return Err(Error::TooLarge { what: "a file".into(), limit: format!("{MAX_LAYER} bytes") });
        }
        check_reserve(self.file.as_file(), self.file.path(), bytes.len())?;
        self.file.write_all(bytes).map_err(Error::file("write", self.file.path()))?;
        self.hash.update(bytes);
        Ok(())
    }

    fn finish(self) -> Result<Blob, Error> {
        let blob = Blob { digest: Digest::finish(self.hash), size: self.size };
        if !self.layout.has(&blob) {
            let (file, path) = self.file.into_parts();
            self.layout.keep(&file, &path, &blob.digest)?;
            // It has another name now.
            let _ = path.keep();
        }
        Ok(blob)
    }
}

/// Reads a file of so many bytes, and reports those that were read.
struct Counted<'a> {
    inner: File,
    done: u64,
    size: u64,
    progress: &'a dyn Fn(u64, u64),
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.done += count as u64;
        (self.progress)(self.done, self.size);
        Ok(count)
    }
}

/// Returns the first bytes, zeros for those that are missing, and goes back to the start.
fn first_bytes(file: &mut File) -> io::Result<[u8; 4]> {
    let mut bytes = Vec::new();
    file.take(4).read_to_end(&mut bytes)?;
    file.rewind()?;
    bytes.resize(4, 0);
    Ok([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn several(count: usize) -> Error {
    unsupported(&format!("it has {count} images: import one at a time"))
}

#[cfg(test)]
mod tests;
