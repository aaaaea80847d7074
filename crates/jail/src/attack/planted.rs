//! Objects placed on the host as targets for attacks.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{FlockOperation, flock};

/// A program that every view of the host shows, and whose lock no other process needs.
const LOCKED: &str = "/usr/bin/env";

/// Files, sockets and memory of the host, for as long as this is held.
pub struct Planted {
    folder: PathBuf,
    name: String,
    key: i32,
    port: u16,
    _kept: (TcpListener, UnixListener, UnixListener, fs::File),
    ipc: Ipc,
    process: Child,
}

/// How many were planted by this process.
static PLANTED: AtomicU32 = AtomicU32::new(0);

impl Planted {
    /// Plants them; files go into this folder, which must be empty and lie where no sandbox looks.
    ///
    /// # Errors
    ///
    /// When one of them cannot be made.
    pub fn new(folder: &Path) -> io::Result<Planted> {
        use std::os::unix::fs::PermissionsExt;
        let name =
            format!("hutch-planted-{}-{}", std::process::id(), PLANTED.fetch_add(1, Ordering::Relaxed));
        fs::write(folder.join("file"), "planted")?;
        let socket = UnixListener::bind(folder.join("socket"))?;
        fs::set_permissions(folder.join("socket"), fs::Permissions::from_mode(0o777))?;
        let in_abstract = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let locked = fs::File::open(LOCKED)?;
        flock(&locked, FlockOperation::NonBlockingLockShared)?;
        let (ipc, key) = Ipc::new(&name)?;
        fs::write(Path::new("/dev/shm").join(&name), "planted")?;
        let process = Command::new("sleep").args(["1000000"]).arg0(&name).spawn()?;
        let kept = (listener, socket, in_abstract, locked);
        Ok(Planted { folder: folder.to_owned(), name, key, port, _kept: kept, ipc, process })
    }

    /// An attempt with what was planted in place of its name in braces.
    pub fn fill(&self, attempt: &str) -> String {
        let path = |name: &str| self.folder.join(name).display().to_string();
        attempt
            .replace("{file}", &path("file"))
            .replace("{socket}", &path("socket"))
            .replace("{abstract}", &self.name)
            .replace("{name}", &self.name)
            .replace("{port}", &self.port.to_string())
            .replace("{key}", &self.key.to_string())
            .replace("{locked}", LOCKED)
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        // Another process may have killed it.
        let _ = self.process.kill().and_then(|()| self.process.wait());
        self.ipc.remove(&self.name);
        for path in
            [self.folder.join("file"), self.folder.join("socket"), Path::new("/dev/shm").join(&self.name)]
        {
            // Names of our own; the folder is its owner's to remove.
            let _ = fs::remove_file(path);
        }
    }
}

/// System V shared memory, semaphores and messages, and POSIX messages, accessible to every user.
struct Ipc {
    memory: i32,
    semaphores: i32,
    messages: i32,
}

impl Ipc {
    /// Creates them under the first unused key.
    fn new(name: &str) -> io::Result<(Ipc, i32)> {
        let flags = libc::IPC_CREAT | libc::IPC_EXCL | 0o666;
        let first = 0x4875_0000 + (std::process::id() & 0xfff) as i32 * 16;
        // SAFETY: numbers only; each call makes something new or nothing.
        let memory_at = |key: i32| (unsafe { libc::shmget(key, 4096, flags) }, key);
        let found = (first..first + 0x1_0000).map(memory_at).find(|(memory, _)| *memory >= 0);
        let Some((memory, key)) = found else { return Err(io::Error::last_os_error()) };
        let named = std::ffi::CString::new(name)?;
        // SAFETY: numbers, and a C string that outlives the call.
        let (semaphores, messages, queue) = unsafe {
            (
                libc::semget(key, 1, flags),
                libc::msgget(key, flags),
                libc::syscall(libc::SYS_mq_open, named.as_ptr(), libc::O_CREAT | libc::O_RDWR, 0o666, 0),
            )
        };
        let error = io::Error::last_os_error();
        let ipc = Ipc { memory, semaphores, messages };
        if semaphores < 0 || messages < 0 || queue < 0 {
            ipc.remove(name);
            return Err(error);
        }
        // SAFETY: the queue stays by its name; the descriptor is ours.
        unsafe { libc::close(queue as i32) };
        Ok((ipc, key))
    }

    fn remove(&self, name: &str) {
        let name = std::ffi::CString::new(name).unwrap_or_default();
        // SAFETY: removes what was made above; numbers that are not there are refused.
        unsafe {
            libc::shmctl(self.memory, libc::IPC_RMID, std::ptr::null_mut());
            libc::semctl(self.semaphores, 0, libc::IPC_RMID);
            libc::msgctl(self.messages, libc::IPC_RMID, std::ptr::null_mut());
            libc::syscall(libc::SYS_mq_unlink, name.as_ptr());
        }
    }
}
