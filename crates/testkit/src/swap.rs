//! Swap of its own for a test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The control files of zram.
const ZRAM: &str = "/sys/class/zram-control";

/// Swap on a file of the disk or on zram. All of the machine may use it, at the lowest priority. It is removed on drop.
pub struct Swap {
    device: PathBuf,
    /// Folder of the file.
    folder: Option<tempfile::TempDir>,
    /// Number of the zram device.
    zram: Option<String>,
    /// The end of one swap brings its pages back to RAM, also those of another test.
    _turn: Option<MutexGuard<'static, ()>>,
}

/// Held by the test that has swap.
static TURN: Mutex<()> = Mutex::new(());

impl Swap {
    /// Adds so many bytes of swap.
    ///
    /// # Panics
    /// When this machine has no place for it, which [`crate::Need::Swap`] finds out before.
    pub fn new(bytes: u64) -> Swap {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        match Swap::on_disk(bytes).or_else(|| Swap::on_zram(bytes)) {
            Some(mut swap) => {
                swap._turn = Some(turn);
                swap
            }
            None => panic!("no swap can be added"),
        }
    }

    fn on_disk(bytes: u64) -> Option<Swap> {
        let folder = tempfile::tempdir().ok()?;
        let file = folder.path().join("swap");
        let made = Command::new("fallocate").args(["--length", &bytes.to_string()]).arg(&file).output();
        succeeds(made).then_some(())?;
        // Others could read the memory of programs there.
        succeeds(Command::new("chmod").arg("0600").arg(&file).output()).then_some(())?;
        is_on(&file).then_some(Swap { device: file, folder: Some(folder), zram: None, _turn: None })
    }

    fn on_zram(bytes: u64) -> Option<Swap> {
        let number = std::fs::read_to_string(Path::new(ZRAM).join("hot_add")).ok()?.trim().to_owned();
        let swap = Swap {
            device: format!("/dev/zram{number}").into(),
            folder: None,
            zram: Some(number.clone()),
            _turn: None,
        };
        std::fs::write(format!("/sys/block/zram{number}/disksize"), bytes.to_string()).ok()?;
        is_on(&swap.device).then_some(swap)
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        let off = succeeds(Command::new("swapoff").arg(&self.device).output());
        if let Some(number) = &self.zram {
            // One that is in use cannot be removed.
            let _ = std::fs::write(format!("/sys/block/zram{number}/reset"), "1");
            let _ = std::fs::write(Path::new(ZRAM).join("hot_remove"), number);
        } else if !off {
            // The kernel still writes to the file.
            let _ = self.folder.take().map(tempfile::TempDir::keep);
        }
    }
}

fn is_on(device: &Path) -> bool {
    succeeds(Command::new("mkswap").arg(device).output())
        && succeeds(Command::new("swapon").args(["--priority", "0"]).arg(device).output())
}

fn succeeds(output: std::io::Result<std::process::Output>) -> bool {
    output.is_ok_and(|output| output.status.success())
}

/// Memory that only swap can free, in KiB, of the processes of Python with this text in their arguments; `None` without any.
///
/// # Panics
/// When the kernel reports no number.
pub fn anonymous_kib(marker: &str) -> Option<u64> {
    let processes = std::fs::read_dir("/proc").ok()?.flatten().map(|process| process.path());
    let own = processes.filter(|process| {
        let arguments = std::fs::read(process.join("cmdline")).unwrap_or_default();
        let arguments = String::from_utf8_lossy(&arguments);
        arguments.starts_with("python3") && arguments.contains(marker)
    });
    let resident = own.map(|process| {
        let status = std::fs::read_to_string(process.join("status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap_or("0 kB");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
    });
    resident.reduce(|one, other| one + other)
}

/// The reason to skip, or nothing when swap can be added. Tried once for each program.
pub(crate) fn missing() -> Option<&'static str> {
    static WORKS: OnceLock<bool> = OnceLock::new();
    let works = WORKS.get_or_init(|| {
        const LITTLE: u64 = 1 << 20;
        let root = rustix::process::geteuid().is_root();
        root && Swap::on_disk(LITTLE).or_else(|| Swap::on_zram(LITTLE)).is_some()
    });
    (!works).then_some("needs root, mkswap, swapon, and a disk or zram that takes swap")
}
