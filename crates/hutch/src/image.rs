//! `hutch image`, and the folders in which images are.

mod stored;

use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, anyhow, bail, ensure};
use hutch_image::{Catalog, Reference, Resolved, Store};
use hutch_registry::{Config, Digest, Event, ImageName, Keychain, Limits, Pulled, Puller, Secret};
use serde_json::json;

use crate::cli::{
    ImageArguments, ImageCommand, ImageImportArguments, ImageLoginArguments, ImagePullArguments,
};
use crate::unpack::unpacker;

/// Folder of pulled images in a data folder: an OCI layout of the administrator or the user.
pub(crate) const PULLED: &str = "pulled";
/// Folder of unpacked layers there.
pub(crate) const IMAGES: &str = "images";
/// Folder of the images that were pulled for Pods, which the process that pulls them writes.
pub(crate) const PULLED_FOR_PODS: &str = "pulled-for-pods";
/// Maximum bytes of a password.
const MAX_PASSWORD: u64 = 64 << 10;

/// Folders of images of one user, or of one data folder.
pub(crate) struct ImageFolders {
    folder: PathBuf,
}

impl ImageFolders {
    /// Those of a data folder.
    fn of(folder: &Path) -> anyhow::Result<ImageFolders> {
        let named = || format!("--data-dir {}", folder.display());
        Ok(ImageFolders { folder: std::path::absolute(folder).with_context(named)? })
    }

    /// Those of the machine for root, else those in the cache of the user.
    pub(crate) fn of_user() -> anyhow::Result<ImageFolders> {
        if rustix::process::geteuid().is_root() {
            return Ok(ImageFolders { folder: "/var/lib/hutch".into() });
        }
        let absolute =
            |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let cache = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
        let cache =
            cache.context("neither XDG_CACHE_HOME nor HOME is set: set one, images are kept there")?;
        Ok(ImageFolders { folder: cache.join("hutch") })
    }

    /// Those of `--data-dir`, else those of the user.
    fn named(folder: Option<&Path>) -> anyhow::Result<ImageFolders> {
        folder.map_or_else(ImageFolders::of_user, ImageFolders::of)
    }

    fn catalog(&self) -> Catalog {
        let pulled = vec![self.pulled(), self.folder.join(PULLED_FOR_PODS)];
        Catalog::new(self.folder.join(IMAGES), pulled)
    }

    fn pulled(&self) -> PathBuf {
        self.folder.join(PULLED)
    }

    fn store(&self) -> anyhow::Result<Store> {
        let remedy = match rustix::process::geteuid().is_root() {
            true => "",
            false => "; set XDG_CACHE_HOME to a folder that you can write",
        };
        let opened = Store::open(&self.folder.join(IMAGES));
        let store = opened.map_err(|error| anyhow!("the folder for images: {error}{remedy}"))?;
        Ok(store.with_unpacker(unpacker()))
    }

    /// Finds an image by its name: one that is built in, an OCI layout, or one that was pulled. A pulled one counts before
    /// a built-in one that answers for a published image.
    pub(crate) fn find(&self, name: &str) -> anyhow::Result<Resolved> {
        let store = self.store()?;
        if !matches!(Reference::parse(name), Ok(Reference::BuiltIn(_) | Reference::Layout(_)))
            && let Ok(full) = ImageName::parse(name)
        {
            if let Some(pulled) = store.find_pulled(&self.pulled(), &full.to_string())? {
                return Ok(pulled);
            }
            ensure!(!full.is_imported(), "image {full} was not imported: hutch image import imports it");
        }
        Ok(store.resolve(name)?)
    }
}

/// Runs a subcommand of `hutch image`.
pub(crate) fn main(arguments: &ImageArguments) -> ExitCode {
    let (name, result) = match &arguments.command {
        ImageCommand::Pull(arguments) => ("pull", pull(arguments)),
        ImageCommand::Import(arguments) => ("import", import(arguments)),
        ImageCommand::Login(arguments) => ("login", log_in(arguments)),
        ImageCommand::Export(arguments) => ("export", stored::export(arguments)),
        ImageCommand::List(arguments) => ("list", stored::list(arguments)),
        ImageCommand::Inspect(arguments) => ("inspect", stored::inspect(arguments)),
        ImageCommand::Remove(arguments) => ("remove", stored::remove(arguments)),
        ImageCommand::Prune(arguments) => ("prune", stored::prune(arguments)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if crate::audit::is_closed(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hutch image {name}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn pull(arguments: &ImagePullArguments) -> anyhow::Result<()> {
    let started = Instant::now();
    match Reference::parse(&arguments.name) {
        Ok(Reference::BuiltIn(image)) => bail!("{} is built in and not pulled", image.name()),
        Ok(Reference::Layout(_)) => bail!("{} is a folder of this machine and not pulled", arguments.name),
        _ => {}
    }
    let name = ImageName::parse(&arguments.name)?;
    let folders = ImageFolders::named(arguments.folder.data_dir.as_deref())?;
    let mut config = match &arguments.image_config {
        Some(file) => {
            Config::read(file).with_context(|| format!("--image-config {}", file.display()))?.or_all()
        }
        None => Config::default().or_all(),
    };
    if arguments.plain_http {
        config = config.with_plain_http(name.registry());
    }
    if let Some(file) = docker_config().filter(|file| file.exists()) {
        config = config.with_credentials(file);
    }
    // Opened first: it makes the folders above with the modes that they must have.
    let store = folders.store()?;
    let puller = Puller::open(&folders.pulled(), config, Limits::default())?;
    let progress = Progress::default();
    let runtime = crate::runtime::runtime()?;
    let pulled = runtime.block_on(puller.pull(&name, &Keychain::default(), |event| progress.show(event)));
    progress.end();
    let pulled = pulled?;
    let image = store.resolve_pulled(&folders.pulled(), &name.to_string())?;
    report(arguments.json, &name, &pulled, &progress, (image.layers.len(), started));
    Ok(())
}

fn import(arguments: &ImageImportArguments) -> anyhow::Result<()> {
    let name = arguments.name.as_deref().map(ImageName::parse_imported).transpose()?;
    let folders = ImageFolders::named(arguments.folder.data_dir.as_deref())?;
    let store = folders.store()?;
    let from = &arguments.from;
    let imported = hutch_registry::import(&folders.pulled(), from, name.as_ref());
    let (name, image) = imported.with_context(|| from.display().to_string())?;
    store.resolve_pulled(&folders.pulled(), &name.to_string())?;
    if arguments.json {
        let (name, digest) = (name.to_string(), image.digest.to_string());
        println!("{}", json!({"name": name, "digest": digest, "manifest": image.manifest.to_string()}));
    } else {
        println!("{name}\n{}", image.digest);
    }
    Ok(())
}

fn report(
    as_json: bool,
    name: &ImageName,
    pulled: &Pulled,
    progress: &Progress,
    (layers, started): (usize, Instant),
) {
    if !as_json {
        println!("{name}\n{}", pulled.digest);
        return;
    }
    let result = json!({
        "name": name.to_string(),
        "digest": pulled.digest.to_string(),
        "manifest": pulled.manifest.to_string(),
        "layers": layers,
        "bytes": progress.bytes.load(Ordering::Relaxed),
        "seconds": started.elapsed().as_secs_f64(),
    });
    println!("{result}");
}

/// Stores the password of standard input. Whether it is right shows at the next pull.
fn log_in(arguments: &ImageLoginArguments) -> anyhow::Result<()> {
    let file = docker_config().context("neither DOCKER_CONFIG nor HOME is set")?;
    let mut password = zeroize::Zeroizing::new(String::new());
    let read = std::io::stdin().take(MAX_PASSWORD + 1).read_to_string(&mut password);
    read.context("the password of standard input")?;
    // As Docker does.
    let password = password.trim_end_matches(['\r', '\n']);
    if password.is_empty() || password.len() as u64 > MAX_PASSWORD {
        bail!("standard input has no password of 1 to {MAX_PASSWORD} bytes");
    }
    let secret = Secret::new(password.to_owned());
    let registry = hutch_registry::log_in(&file, &arguments.registry, &arguments.username, &secret)?;
    println!("Stored the password for {registry} in {}", file.display());
    Ok(())
}

/// Returns the path of the `config.json` of Docker of this user.
fn docker_config() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|text| !text.is_empty()).map(PathBuf::from);
    let folder = folder("DOCKER_CONFIG").or_else(|| folder("HOME").map(|home| home.join(".docker")))?;
    Some(folder.join("config.json"))
}

/// Progress of a pull, on standard error if that is a terminal.
#[derive(Default)]
struct Progress {
    /// Bytes of all layers.
    bytes: AtomicU64,
    /// Bytes of each layer that are there.
    done: Mutex<std::collections::BTreeMap<String, u64>>,
}

impl Progress {
    fn show(&self, event: Event) {
        match event {
            Event::Resolved { bytes, .. } => self.bytes.store(bytes, Ordering::Relaxed),
            Event::Layer { digest, done, .. } => self.layer(&digest, done),
        }
    }

    fn layer(&self, digest: &Digest, done: u64) {
        if !std::io::stderr().is_terminal() {
            return;
        }
        let mut layers = self.done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        layers.insert(digest.to_string(), done);
        let (done, all) = (layers.values().sum::<u64>(), self.bytes.load(Ordering::Relaxed));
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        // A terminal that is gone does not matter for the pull.
        let _ = write!(std::io::stderr(), "\r{:.1} of {:.1} MB", megabytes(done), megabytes(all));
    }

    /// Ends the line.
    fn end(&self) {
        let layers = self.done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if !layers.is_empty() {
            eprintln!();
        }
    }
}
