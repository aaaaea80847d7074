//! Reads an OCI layout folder: index, manifest, configuration, layers. Everything is checked against its digest.
//!
//! The folder is untrusted: only regular files below it are opened, no link is followed, and no error
//! repeats content or its digest.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use oci_spec::image::{Arch, Descriptor, ImageConfiguration, ImageIndex, ImageManifest, MediaType, Os};
use rustix::io::Errno;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::beneath::Folder;
use crate::unpack::{Packing, hex};
use crate::{Error, ImageConfig, PathSegment, StopSignal};

/// Largest index, manifest or configuration, in bytes.
const MAX_JSON_BYTES: u64 = 4 << 20;
/// Most layers of an image: overlayfs takes 500, real images stop at 127.
const MAX_LAYERS: usize = 128;
/// How deep an index may point to another index.
const MAX_INDEX_DEPTH: usize = 3;
/// First part of the names of folders of unpacked layers.
pub(crate) const LAYER: &str = "layer-sha256-";
/// Maximum documents that are read to find out whether a digest leads to a manifest.
const MAX_DOCUMENTS: usize = 16;
/// The annotation that carries a tag.
pub(crate) const TAG: &str = "org.opencontainers.image.ref.name";

/// An image of a layout folder, its metadata verified.
#[derive(Debug)]
pub(crate) struct LayoutImage {
    /// Digest of the manifest.
    pub(crate) digest: String,
    /// Bytes of manifest, configuration and layers, as packed.
    pub(crate) size: u64,
    /// Digest of the configuration.
    pub(crate) config_digest: String,
    /// Time at which it was built, as it says.
    pub(crate) created: Option<String>,
    /// Operating system and architecture.
    pub(crate) platform: String,
    /// Lowest layer first.
    pub(crate) layers: Vec<Layer>,
    pub(crate) config: ImageConfig,
}

/// A layer, not yet verified.
#[derive(Debug)]
pub(crate) struct Layer {
    /// Hexadecimal digest of the archive.
    pub(crate) diff_id: String,
    /// Hexadecimal digest of the blob.
    pub(crate) blob_digest: String,
    pub(crate) packing: Packing,
    /// Bytes of the blob.
    pub(crate) size: u64,
}

impl Layer {
    /// Name of the folder of the unpacked layer.
    ///
    /// It has both digests: a process that a hostile blob has taken over can report any digest of an archive, and must
    /// not pass for the layer of another image.
    pub(crate) fn folder_name(&self) -> Option<PathSegment> {
        PathSegment::new(format!("{LAYER}{}-{}", self.diff_id, self.blob_digest))
    }
}

/// An open layout folder.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) folder: Folder,
    /// Names the folder in errors.
    path: PathBuf,
}

impl Layout {
    /// Takes an open folder; `path` names it in errors.
    pub(crate) fn new(folder: Folder, path: &Path) -> Layout {
        Layout { folder, path: path.into() }
    }

    /// Reads the image of that tag, or the only one (for this machine) when no tag is named.
    pub(crate) fn read(&self, tag: Option<&str>) -> Result<LayoutImage, Error> {
        if self.open("oci-layout").is_err() {
            return Err(self.error("it has no file oci-layout, so it is not an OCI layout folder"));
        }
        let index = self.read_file("index.json")?;
        let index = ImageIndex::from_reader(&*index).map_err(|_| self.invalid("index.json"))?;
        let manifest = self.choose(&index, tag, 0)?;
        if let Some((_, pinned)) = tag.and_then(|tag| tag.split_once('@'))
            && !self.leads(pinned, manifest.digest().as_ref())
        {
            return Err(self.error(&format!("its image {pinned} has another digest")));
        }
        self.image(&manifest)
    }

    /// Reads the image of a manifest.
    pub(crate) fn image(&self, manifest: &Descriptor) -> Result<LayoutImage, Error> {
        let text = self.blob(manifest)?;
        let parsed = ImageManifest::from_reader(&*text).map_err(|_| self.invalid("manifest"))?;
        let described = parsed.config();
        let config = self.blob(described)?;
        let config = ImageConfiguration::from_reader(&*config).map_err(|_| self.invalid("configuration"))?;
        let layers = self.layers(&parsed, &config)?;
        let packed = layers.iter().fold(0u64, |sum, layer: &Layer| sum.saturating_add(layer.size));
        let documents = (text.len() as u64).saturating_add(described.size());
        Ok(LayoutImage {
            digest: manifest.digest().to_string(),
            size: packed.saturating_add(documents),
            config_digest: described.digest().to_string(),
            created: config.created().clone(),
            platform: format!("{}/{}", config.os(), config.architecture()),
            layers,
            config: self.settings(&config)?,
        })
    }

    /// Returns `true` if a digest is that of a manifest, or of an index that leads to it. Each document has the digest by
    /// which it is read, so that the folder cannot pass another image for that of a digest.
    pub(crate) fn leads(&self, from: &str, manifest: &str) -> bool {
        let mut waiting = vec![from.to_owned()];
        for _ in 0..MAX_DOCUMENTS {
            let Some(digest) = waiting.pop() else { return false };
            if digest == manifest {
                return true;
            }
            let entries = self.entries_of(&digest).unwrap_or_default();
            if entries.iter().any(|entry| entry == manifest) {
                return true;
            }
            waiting.extend(entries.into_iter().filter(|entry| self.has_blob(entry)));
        }
        false
    }

    /// Returns the digests of an index; of anything else none. Only calls of the operating system fail.
    pub(crate) fn entries_of(&self, digest: &str) -> Result<Vec<String>, Error> {
        let text = match self.sha256(digest).and_then(|hex| self.verified(&hex)) {
            Err(error @ Error::File { .. }) => return Err(error),
            read => read.unwrap_or_default(),
        };
        let document: Value = serde_json::from_slice(&text).unwrap_or_default();
        let entries = document["manifests"].as_array().into_iter().flatten();
        Ok(entries.filter_map(|entry| entry["digest"].as_str()).map(str::to_owned).collect())
    }

    fn has_blob(&self, digest: &str) -> bool {
        self.sha256(digest).is_ok_and(|hex| self.open(&blob_path(&hex)).is_ok())
    }

    /// Returns true if there is an image of that tag.
    pub(crate) fn has(&self, tag: &str) -> Result<bool, Error> {
        let index = self.read_file("index.json")?;
        let index = ImageIndex::from_reader(&*index).map_err(|_| self.invalid("index.json"))?;
        let named = |d: &Descriptor| d.annotations().as_ref().and_then(|notes| notes.get(TAG)).cloned();
        Ok(index.manifests().iter().any(|d| named(d).is_some_and(|name| name == tag)))
    }

    /// Opens the archive of a layer.
    pub(crate) fn open_layer(&self, layer: &Layer) -> Result<File, Error> {
        self.open(&blob_path(&layer.blob_digest))
    }

    /// Names the archive of a layer in an error.
    pub(crate) fn name_of(&self, layer: &Layer) -> String {
        format!("{} of OCI layout {}", blob_path(&layer.blob_digest), self.path.display())
    }

    /// The error for a digest that is no file name, which [`Layout::read`] has excluded.
    pub(crate) fn no_name(&self) -> Error {
        self.invalid("digest")
    }

    fn settings(&self, image: &ImageConfiguration) -> Result<ImageConfig, Error> {
        let Some(config) = image.config() else { return Ok(ImageConfig::default()) };
        let env = config.env().iter().flatten();
        let unknown =
            || self.error("its stop signal is unknown: write a name such as SIGTERM, or a number up to 64");
        let stop_signal = config.stop_signal().as_deref().filter(|text| !text.is_empty());
        let stop_signal = stop_signal.map(|text| StopSignal::parse(text).ok_or_else(unknown)).transpose()?;
        Ok(ImageConfig {
            entrypoint: config.entrypoint().clone().unwrap_or_default(),
            cmd: config.cmd().clone().unwrap_or_default(),
            env: env.filter_map(|e| e.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect(),
            working_dir: config.working_dir().as_ref().filter(|dir| dir.starts_with('/')).map(PathBuf::from),
            user: config.user().clone().unwrap_or_default(),
            stop_signal: stop_signal.unwrap_or_default(),
        })
    }

    /// The parser's own message may repeat content, so it is left out.
    pub(crate) fn invalid(&self, what: &str) -> Error {
        self.error(&format!("its {what} is not valid"))
    }

    /// For `map_err` on calls of the operating system for a file of the folder.
    pub(crate) fn file_error<E: Into<std::io::Error>>(
        &self,
        action: &'static str,
        name: &str,
    ) -> impl FnOnce(E) -> Error {
        Error::file(action, format!("{}/{name}", self.path.display()))
    }

    pub(crate) fn error(&self, reason: &str) -> Error {
        Error::Layout { path: self.path.clone(), reason: reason.into() }
    }

    fn choose(&self, index: &ImageIndex, tag: Option<&str>, depth: usize) -> Result<Descriptor, Error> {
        let tagged = |d: &&Descriptor| match (tag, d.annotations()) {
            (Some(tag), Some(notes)) => notes.get(TAG).is_some_and(|t| t == tag),
            (Some(_), None) => false,
            (None, _) => true,
        };
        let fits = |d: &&Descriptor| {
            d.platform().as_ref().is_none_or(|p| p.os() == &Os::Linux && p.architecture() == &Arch::default())
        };
        let found: Vec<&Descriptor> = index.manifests().iter().filter(tagged).filter(fits).collect();
        let one = match found[..] {
            [one] => one,
            [] => {
                return Err(self.error(&match tag {
                    Some(tag) => format!("it has no image tagged {tag:?} for this machine"),
                    None => "it has no image for this machine".into(),
                }));
            }
            _ => return Err(self.error("it has several images: name one as oci:PATH:TAG")),
        };
        match one.media_type() {
            MediaType::ImageIndex if depth < MAX_INDEX_DEPTH => {
                let nested = self.blob(one)?;
                let nested = ImageIndex::from_reader(&*nested).map_err(|_| self.invalid("nested index"))?;
                self.choose(&nested, None, depth + 1)
            }
            MediaType::ImageIndex => Err(self.error("its indexes are nested too deep")),
            _ => Ok(one.clone()),
        }
    }

    fn layers(&self, manifest: &ImageManifest, config: &ImageConfiguration) -> Result<Vec<Layer>, Error> {
        let diff_ids = config.rootfs().diff_ids();
        if manifest.layers().len() > MAX_LAYERS {
            return Err(Error::TooLarge { what: "image".into(), limit: format!("{MAX_LAYERS} layers") });
        }
        if manifest.layers().is_empty() || diff_ids.len() != manifest.layers().len() {
            return Err(self.error("manifest and configuration do not name the same layers"));
        }
        let pairs = manifest.layers().iter().zip(diff_ids);
        pairs
            .map(|(descriptor, diff_id)| {
                Ok(Layer {
                    diff_id: self.sha256(diff_id)?,
                    blob_digest: self.sha256(descriptor.digest().as_ref())?,
                    packing: self.packing(descriptor.media_type())?,
                    size: descriptor.size(),
                })
            })
            .collect()
    }

    fn packing(&self, media_type: &MediaType) -> Result<Packing, Error> {
        let name = media_type.to_string();
        match name.as_str() {
            "application/vnd.oci.image.layer.v1.tar" => Ok(Packing::Plain),
            "application/vnd.oci.image.layer.v1.tar+gzip"
            | "application/vnd.docker.image.rootfs.diff.tar.gzip" => Ok(Packing::Gzip),
            "application/vnd.oci.image.layer.v1.tar+zstd" => Ok(Packing::Zstd),
            _ => Err(self.error(&format!("a layer has the unsupported media type {name:?}"))),
        }
    }

    /// Hexadecimal part of a sha256 digest; nothing else is safe as a file name.
    pub(crate) fn sha256(&self, digest: &str) -> Result<String, Error> {
        let hex = digest.strip_prefix("sha256:").filter(|hex| {
            hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        });
        hex.map(str::to_owned).ok_or_else(|| self.error(&format!("digest {digest:?} is not a sha256 digest")))
    }

    /// Reads a small blob and checks it.
    fn blob(&self, descriptor: &Descriptor) -> Result<Vec<u8>, Error> {
        self.verified(&self.sha256(descriptor.digest().as_ref())?)
    }

    pub(crate) fn verified(&self, expected: &str) -> Result<Vec<u8>, Error> {
        let path = blob_path(expected);
        let bytes = self.read_file(&path)?;
        if expected != hex(&Sha256::digest(&bytes)) {
            return Err(Error::DigestMismatch {
                what: format!("{path} of OCI layout {}", self.path.display()),
            });
        }
        Ok(bytes)
    }

    pub(crate) fn read_file(&self, path: &str) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        let file = self.open(path)?;
        let read = file.take(MAX_JSON_BYTES + 1).read_to_end(&mut bytes);
        read.map_err(self.file_error("read", path))?;
        if bytes.len() as u64 > MAX_JSON_BYTES {
            let what = format!("{path} of OCI layout {}", self.path.display());
            return Err(Error::TooLarge { what, limit: format!("{MAX_JSON_BYTES} bytes") });
        }
        Ok(bytes)
    }

    /// Opens a regular file below the folder. A pipe does not block, a link is not followed.
    pub(crate) fn open(&self, path: &str) -> Result<File, Error> {
        self.folder.open_file(Path::new(path)).map_err(|errno| match errno {
            Errno::LOOP | Errno::XDEV => {
                self.error(&format!("{path} leads over a link, which is not followed"))
            }
            Errno::NOTSUP | Errno::NXIO => self.error(&format!("{path} is not a regular file")),
            Errno::NOENT | Errno::NOTDIR | Errno::ISDIR => {
                self.error(&format!("cannot open {path}: {}", std::io::Error::from(errno)))
            }
            errno => self.file_error("open", path)(errno),
        })
    }
}

pub(crate) fn blob_path(digest: &str) -> String {
    format!("blobs/sha256/{digest}")
}
