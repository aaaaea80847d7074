//! Flags of `hutch image`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::client::NameArgument;
use super::{Container, DataDir, Place};

/// `hutch image`.
#[derive(Args)]
pub(crate) struct ImageArguments {
    #[command(subcommand)]
    pub(crate) command: ImageCommand,
}

/// Subcommands of `hutch image`.
#[derive(Subcommand)]
pub(crate) enum ImageCommand {
    /// Pull an image, for `hutch run --image` of this user, or for `hutch up` on the same data folder.
    Pull(ImagePullArguments),
    /// Import an image from an archive of `docker save` or an OCI layout, as hutch.local/NAME:TAG.
    Import(ImageImportArguments),
    /// Write an image as a tar archive that is an OCI layout, and that `docker load` reads.
    Export(ImageExportArguments),
    /// Make an image of the image of a Sandbox and what the Sandbox has changed, as hutch.local/NAME:TAG.
    Commit(ImageCommitArguments),
    /// Store the password for a registry in Docker's config.json. It is read from standard input.
    Login(ImageLoginArguments),
    /// List the images that were pulled.
    #[command(visible_alias = "ls")]
    List(ImageListArguments),
    /// Print an image as JSON: digests, layers, sizes, configuration, and which processes use it.
    Inspect(ImageInspectArguments),
    /// Remove images that nothing uses.
    #[command(visible_alias = "rm")]
    Remove(ImageRemoveArguments),
    /// Remove what belongs to no image: blobs, unpacked layers, and what interrupted pulls left.
    Prune(ImagePruneArguments),
}

/// Flag for the data folder.
#[derive(Args)]
pub(crate) struct ImageFolder {
    /// Data folder; default /var/lib/hutch for root, else the cache of the user.
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
}

/// `hutch image import`.
#[derive(Args)]
pub(crate) struct ImageImportArguments {
    /// Archive of `docker save`, or OCI layout: a folder, or a tar archive, also with gzip.
    #[arg(value_name = "FILE|FOLDER")]
    pub(crate) from: PathBuf,
    /// Name, such as app:v1 or hutch.local/app:v1; default is the name in the archive.
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) folder: ImageFolder,
    /// Print one JSON object with the result.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `hutch image export`.
#[derive(Args)]
pub(crate) struct ImageExportArguments {
    /// Image: a name, a digest, or the first digits of one.
    #[arg(value_name = "IMAGE")]
    pub(crate) image: String,
    /// File that is made or replaced, or - for standard output.
    #[arg(value_name = "FILE")]
    pub(crate) to: PathBuf,
    #[command(flatten)]
    pub(crate) folder: ImageFolder,
    /// Print one JSON object with the result; not with -, whose output is the archive.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `hutch image commit`.
#[derive(Args)]
pub(crate) struct ImageCommitArguments {
    #[command(flatten)]
    pub(crate) place: Place,
    #[command(flatten)]
    pub(crate) container: Container,
    #[command(flatten)]
    pub(crate) sandbox: NameArgument,
    /// Name of the new image, such as app:v2 or hutch.local/app:v2.
    #[arg(value_name = "NAME")]
    pub(crate) image: String,
    #[command(flatten)]
    pub(crate) data: DataDir,
    /// Print one JSON object with the result.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `hutch image login`.
#[derive(Args)]
pub(crate) struct ImageLoginArguments {
    /// Registry, as HOST or HOST:PORT.
    #[arg(value_name = "REGISTRY", default_value = "docker.io")]
    pub(crate) registry: String,
    /// User.
    #[arg(long, short, value_name = "NAME")]
    pub(crate) username: String,
    /// Read the password from standard input, which is the only way.
    #[arg(long, required = true)]
    pub(crate) password_stdin: bool,
    /// Print one JSON object with the result.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `hutch image list`.
#[derive(Args)]
pub(crate) struct ImageListArguments {
    #[command(flatten)]
    pub(crate) folder: ImageFolder,
    /// Print names alone.
    #[arg(long, short, conflicts_with = "json")]
    pub(crate) quiet: bool,
    /// Print a JSON array.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `hutch image inspect`.
#[derive(Args)]
pub(crate) struct ImageInspectArguments {
    /// Image: a name, a digest, or the first digits of one.
    #[arg(value_name = "IMAGE", required = true)]
    pub(crate) images: Vec<String>,
    #[command(flatten)]
    pub(crate) folder: ImageFolder,
    /// Print a JSON array, which is the only form.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `hutch image remove`.
#[derive(Args)]
pub(crate) struct ImageRemoveArguments {
    /// Image: a name, or a digest or the first digits of one, by which all of its names are removed.
    #[arg(value_name = "IMAGE", required = true)]
    pub(crate) images: Vec<String>,
    #[command(flatten)]
    pub(crate) folder: ImageFolder,
    /// Print one JSON object with the result.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `hutch image prune`.
#[derive(Args)]
pub(crate) struct ImagePruneArguments {
    /// Remove also all images that nothing uses.
    #[arg(long, short)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) folder: ImageFolder,
    /// Print one JSON object with the result.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `hutch image pull`.
#[derive(Args)]
pub(crate) struct ImagePullArguments {
    /// Image, such as python:3.12-slim, ghcr.io/org/app@sha256:... or localhost:5000/app.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) folder: ImageFolder,
    /// File with mirrors, authorities, registries without TLS and files with credentials.
    #[arg(long, value_name = "FILE")]
    pub(crate) image_config: Option<PathBuf>,
    /// Connect to the registry of the image without TLS.
    #[arg(long)]
    pub(crate) plain_http: bool,
    /// Print one JSON object with the result.
    #[arg(long)]
    pub(crate) json: bool,
}
