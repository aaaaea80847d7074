//! The process that unpacks a layer of an image. It has an id of its own, no capabilities and no network, starts nothing, and
//! can write only the folder of the layer. The archive is its standard input, and its report is its standard output.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;

use anyhow::{Context, ensure};
use hutch_image::Unpacker;
use hutch_jail::IdRanges;
use hutch_jail::service::{Confinement, confine};
use rustix::io::dup;
use rustix::process::{getgid, getuid};

/// Name of the program as other programs of Hutch start it. Not a command for users.
pub(crate) const NAME: &str = "hutch-unpack";

/// Returns the means to unpack layers in a process of its own.
pub(crate) fn unpacker() -> Arc<dyn Unpacker> {
    Arc::new(Confined)
}

#[derive(Debug)]
struct Confined;

impl Unpacker for Confined {
    fn run(&self, target: &Path, packing: &str, blob: File, report: File) -> io::Result<Option<u32>> {
        hutch_jail::close_inherited_on_exec()?;
        // Held until the process has ended: no other process of the machine has its id.
        let ids = match getuid().is_root() {
            true => Some(IdRanges::open(rand::random()).and_then(|ranges| ranges.take())),
            false => None,
        };
        let ids = ids.transpose().map_err(io::Error::other)?;
        let id = ids.as_ref().map(|ids| ids.base());
        if let Some(id) = id {
            std::os::unix::fs::lchown(target, Some(id), Some(id))?;
        }
        let mut command = Command::new("/proc/self/exe");
        command.arg0(NAME).arg(packing).env_clear().current_dir(target).stdin(blob).stdout(report);
        command.arg(id.unwrap_or(getuid().as_raw()).to_string());
        command.arg(id.unwrap_or(getgid().as_raw()).to_string());
        command.stderr(Stdio::inherit()).status()?;
        // How it ended is in the report.
        Ok(id)
    }
}

/// Unpacks the archive, after it has confined itself.
pub(crate) fn main() -> ExitCode {
    crate::runtime::program(NAME, run)
}

fn run() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().collect();
    ensure!(words.len() == 4, "started by hutch alone");
    let id = |word: &str| word.parse().context("started by hutch alone");
    let (packing, uid, gid) = (&words[1], id(&words[2])?, id(&words[3])?);
    hutch_serve::forbid_core_files();
    let blob = File::from(dup(rustix::stdio::stdin()).context("the archive")?);
    let report = File::from(dup(rustix::stdio::stdout()).context("the report")?);
    let writable = [Path::new(".")];
    confine(&Confinement { uid, gid, writable: &writable, readable: &[], connects: false })
        .context("cannot be confined")?;
    hutch_image::unpack_and_report(packing, blob, report).context("the report")
}
