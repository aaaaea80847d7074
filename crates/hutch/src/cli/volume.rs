//! Flags of `hutch volume`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Place;
use crate::quantity;

/// `hutch volume`.
#[derive(Args)]
pub(crate) struct VolumeArguments {
    #[command(subcommand)]
    pub(crate) command: VolumeCommand,
}

/// Subcommands of `hutch volume`.
#[derive(Subcommand)]
pub(crate) enum VolumeCommand {
    /// List persistent volume claims, with the Pods that use them.
    List(VolumeListArguments),
    /// Measure the volumes of claims on the disk. Needs root on the machine of `hutch up`.
    Du(VolumeDuArguments),
    /// Write the files of a volume as a tar archive. Needs root on the machine of `hutch up`.
    Export(VolumeCopyArguments),
    /// Add the files of a tar archive to a volume. Needs root on the machine of `hutch up`.
    Import(VolumeCopyArguments),
}

/// `hutch volume list`.
#[derive(Args)]
pub(crate) struct VolumeListArguments {
    #[command(flatten)]
    pub(crate) place: Place,
    /// List those of all namespaces.
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    pub(crate) all_namespaces: bool,
}

/// Flag for the data folder.
#[derive(Args)]
pub(crate) struct DataDir {
    /// Data folder of `hutch up`.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/hutch")]
    pub(crate) data_dir: PathBuf,
}

/// `hutch volume du`.
#[derive(Args)]
pub(crate) struct VolumeDuArguments {
    #[command(flatten)]
    pub(crate) place: Place,
    #[command(flatten)]
    pub(crate) data: DataDir,
    /// Claims; default all of the namespace.
    #[arg(value_name = "CLAIM", value_parser = quantity::subdomain)]
    pub(crate) claims: Vec<String>,
}

/// `hutch volume export` and `hutch volume import`.
#[derive(Args)]
pub(crate) struct VolumeCopyArguments {
    #[command(flatten)]
    pub(crate) place: Place,
    #[command(flatten)]
    pub(crate) data: DataDir,
    /// Claim.
    #[arg(value_name = "CLAIM", value_parser = quantity::subdomain)]
    pub(crate) claim: String,
    /// Archive; `-` is standard output or input.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}
