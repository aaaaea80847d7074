//! `hutch image`, and the folders in which images are.

mod commit;
mod progress;
mod stored;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, anyhow, bail, ensure};
use hutch_image::{Catalog, Reference, Resolved, Store};
use hutch_registry::{Config, Fetched, ImageName, Keychain, Limits, Proxy, Pulled, Puller, Secret};
use serde_json::json;

use self::progress::{Meter, Progress};
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

    /// Returns the folder of all.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
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
            let folder = self.folder.display();
            ensure!(!full.is_imported(), "image {full} is not in {folder}: hutch image import imports it");
        }
        store.resolve(name).map_err(|error| {
            let imported = ImageName::parse_imported(name).ok().filter(|imported| {
                store.find_pulled(&self.pulled(), &imported.to_string()).is_ok_and(|found| found.is_some())
            });
            match imported {
                Some(imported) => anyhow!("image {name} was not pulled; {imported} is here: write it so"),
                None => error.into(),
            }
        })
    }
}

/// Runs a subcommand of `hutch image`.
pub(crate) fn main(arguments: &ImageArguments) -> ExitCode {
    let (name, result) = match &arguments.command {
        ImageCommand::Pull(arguments) => ("pull", pull(arguments)),
        ImageCommand::Import(arguments) => ("import", import(arguments)),
        ImageCommand::Commit(arguments) => ("commit", commit::commit(arguments)),
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
            // Names in it may be those of another process.
            eprintln!("hutch image {name}: {}", crate::client::line_of(&error));
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
    config = config.with_proxy(Proxy::of_environment()?);
    // Opened first: it makes the folders above with the modes that they must have.
    let store = folders.store()?;
    let puller = Puller::open(&folders.pulled(), config, Limits::default())?;
    let progress = Progress::new();
    let runtime = crate::runtime::runtime()?;
    let fetched = runtime.block_on(puller.fetch(&name, &Keychain::default(), |event| progress.show(event)));
    progress.end();
    let (pulled, layers) = keep(&store, &folders, fetched?)?;
    report(arguments.json, &name, &pulled, &progress, (layers, started));
    Ok(())
}

fn import(arguments: &ImageImportArguments) -> anyhow::Result<()> {
    let name = arguments.name.as_deref().map(ImageName::parse_imported).transpose()?;
    let folders = ImageFolders::named(arguments.folder.data_dir.as_deref())?;
    let store = folders.store()?;
    let from = &arguments.from;
    ensure!(from != Path::new("-"), "standard input cannot be read out of order: name a FILE or a FOLDER");
    let fetched = read(&folders, from, name.as_ref()).with_context(|| from.display().to_string())?;
    let names: Vec<_> = fetched.names().cloned().collect();
    let (image, _) = keep(&store, &folders, fetched).with_context(|| from.display().to_string())?;
    print_imported(arguments.json, &names, &image);
    Ok(())
}

/// Reads an archive or a layout, with a bar.
fn read(folders: &ImageFolders, from: &Path, name: Option<&ImageName>) -> anyhow::Result<Fetched> {
    let meter = Meter::new("import");
    let fetched = hutch_registry::import(&folders.pulled(), from, name, &|done, size| meter.show(done, size));
    meter.end();
    Ok(fetched?)
}

/// Prints the names of an image and its digest. `name` of JSON is the first of them.
fn print_imported(as_json: bool, names: &[ImageName], image: &Pulled) {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    if as_json {
        let (digest, manifest) = (image.digest.to_string(), image.manifest.to_string());
        println!(
            "{}",
            json!({"name": names.first(), "names": names, "digest": digest, "manifest": manifest})
        );
    } else {
        println!("{}\n{}", names.join("\n"), image.digest);
    }
}

/// Unpacks an image, then gives it its name: one that cannot be unpacked replaces none. Returns the number of its layers.
fn keep(store: &Store, folders: &ImageFolders, fetched: Fetched) -> anyhow::Result<(Pulled, usize)> {
    let (digest, size, media_type) = fetched.manifest();
    let image = store.resolve_unnamed(&folders.pulled(), (&digest.to_string(), size, media_type))?;
    // `image` keeps the layers from being removed until they have a name.
    Ok((fetched.keep()?, image.layers.len()))
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
        "bytes": progress.bytes(),
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
    match arguments.json {
        true => println!("{}", json!({"registry": registry, "file": file.display().to_string()})),
        false => println!("Stored the password for {registry} in {}", file.display()),
    }
    Ok(())
}

/// Returns the path of the `config.json` of Docker of this user.
fn docker_config() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|text| !text.is_empty()).map(PathBuf::from);
    let folder = folder("DOCKER_CONFIG").or_else(|| folder("HOME").map(|home| home.join(".docker")))?;
    Some(folder.join("config.json"))
}
