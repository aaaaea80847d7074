//! A file or folder of this machine as a tar stream.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, ensure};
use tar::{Builder, EntryType, Header};

use super::LeftOut;
use super::pipe::Outgoing;

/// Folders within each other that are packed.
const DEPTH_MAX: usize = 256;

/// Packs it under this name: files, folders, links as links. Whose they are is not told; inside they belong to whoever
/// unpacks them.
pub(super) fn pack(from: &Path, name: &Path, to: Outgoing) -> anyhow::Result<LeftOut> {
    let mut left_out = LeftOut::default();
    let mut builder = Builder::new(to);
    // A link that was named means what it leads to.
    let metadata = std::fs::metadata(from).with_context(|| from.display().to_string())?;
    match add(&mut builder, (from, name), &metadata, 0, &mut left_out) {
        // The other side has ended, and says why.
        Err(error) if is_broken_pipe(&error) => return Ok(left_out),
        other => other?,
    }
    match builder.into_inner().and_then(Outgoing::finish) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(left_out),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kinds = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    kinds.into_iter().any(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn add(
    builder: &mut Builder<Outgoing>,
    (from, name): (&Path, &Path),
    metadata: &Metadata,
    depth: usize,
    left_out: &mut LeftOut,
) -> anyhow::Result<()> {
    let named = || from.display().to_string();
    ensure!(depth <= DEPTH_MAX, "{}: more than {DEPTH_MAX} folders deep", named());
    let mut header = Header::new_gnu();
    header.set_mode(metadata.mode() & 0o777);
    header.set_mtime(u64::try_from(metadata.mtime()).unwrap_or(0));
    header.set_size(0);
    let kind = metadata.file_type();
    if kind.is_dir() {
        header.set_entry_type(EntryType::Directory);
        builder.append_data(&mut header, name.join(""), io::empty()).with_context(named)?;
        for entry in std::fs::read_dir(from).with_context(named)? {
            let entry = entry.with_context(named)?;
            let path = entry.path();
            // What has gone since is not there to be copied.
            let Ok(metadata) = entry.metadata() else { continue };
            add(builder, (&path, &name.join(entry.file_name())), &metadata, depth + 1, left_out)?;
        }
    } else if kind.is_symlink() {
        header.set_entry_type(EntryType::Symlink);
        let target = std::fs::read_link(from).with_context(named)?;
        builder.append_link(&mut header, name, target).with_context(named)?;
    } else if kind.is_file() {
        add_file(builder, (from, name), header).with_context(named)?;
    } else {
        left_out.add(format!("{}: neither a file, nor a folder, nor a link", named()));
    }
    Ok(())
}

fn add_file(
    builder: &mut Builder<Outgoing>,
    (from, name): (&Path, &Path),
    mut header: Header,
) -> anyhow::Result<()> {
    // A pipe that has taken its place would be waited for.
    let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits())?;
    let file = File::options().read(true).custom_flags(nonblocking).open(from)?;
    let metadata = file.metadata()?;
    ensure!(metadata.is_file(), "it was replaced while it was copied");
    let size = metadata.len();
    header.set_size(size);
    let mut read = Counted { from: file.take(size), count: 0 };
    builder.append_data(&mut header, name, &mut read)?;
    ensure!(read.count == size, "it became shorter while it was copied");
    Ok(())
}

struct Counted<R> {
    from: R,
    count: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer)?;
        self.count += count as u64;
        Ok(count)
    }
}
