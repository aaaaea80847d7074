//! A file or folder of this machine as a tar stream.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Context;
use hutch_archive::{Builder, Notice, Packing, append_file, append_folder};

use super::LeftOut;
use super::pipe::Outgoing;

/// Set-id bits are not packed.
const PACKING: Packing = Packing { depth: 256, bytes: u64::MAX, modes: 0o777, owners: false, layer: false };

/// Packs it under this name: files, folders, links as links. Owners are not packed; inside, the files belong to the user
/// that unpacks them.
pub(super) fn pack(from: &Path, name: &Path, to: Outgoing) -> anyhow::Result<LeftOut> {
    let mut left_out = LeftOut::default();
    let mut builder = Builder::new(to);
    let packed = add(&mut builder, from, name, &mut left_out);
    match packed.and_then(|()| builder.into_inner()).and_then(Outgoing::finish) {
        // The other side has ended, and says why.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(left_out),
        other => other.with_context(|| format!("cannot read {}", from.display())).map(|()| left_out),
    }
}

fn add(builder: &mut Builder<Outgoing>, from: &Path, name: &Path, left_out: &mut LeftOut) -> io::Result<()> {
    let mut notice = |path: &Path, notice| match notice {
        Notice::Special => {
            left_out.add(format!("{}: neither a file, nor a folder, nor a link", path.display()));
            Ok(())
        }
        Notice::Shorter => {
            let problem = format!("{} became shorter while it was copied", path.display());
            Err(io::Error::other(problem))
        }
    };
    // A link that was named means its target. A pipe must not block.
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(nonblocking).open(from)?;
    if !file.metadata()?.is_dir() {
        return append_file(file, name, PACKING, builder, &mut notice);
    }
    append_folder(&file, name, PACKING, builder)?;
    hutch_archive::pack(file.into(), name, PACKING, builder, notice)
}
