//! Flags of `hutch image`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

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
}

/// `hutch image pull`.
#[derive(Args)]
pub(crate) struct ImagePullArguments {
    /// Image, such as python:3.12-slim, ghcr.io/org/app@sha256:... or localhost:5000/app.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Data folder; default /var/lib/hutch for root, else the cache of the user.
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
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
