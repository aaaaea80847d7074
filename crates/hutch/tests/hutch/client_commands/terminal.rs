//! Commands at a terminal.

use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use hutch_testkit::wait::until;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::OpenptFlags;
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use super::{ok, started};
use crate::harness::{HUTCH, Up, running};

/// A terminal with a program, and all text of its screen.
pub(crate) struct Screen {
    ours: Arc<OwnedFd>,
    theirs: OwnedFd,
    seen: Arc<Mutex<Vec<u8>>>,
    child: Child,
}

impl Screen {
    fn start(up: &Up, words: &[&str]) -> Screen {
        Screen::of(up, HUTCH, words)
    }

    pub(crate) fn of(up: &Up, program: &str, words: &[&str]) -> Screen {
        let ours = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
            .expect("openpt");
        rustix::pty::grantpt(&ours).expect("grantpt");
        rustix::pty::unlockpt(&ours).expect("unlockpt");
        let name = rustix::pty::ptsname(&ours, Vec::new()).expect("ptsname");
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let theirs = rustix::fs::open(name, flags, Mode::empty()).expect("the other side");
        let end = || Stdio::from(theirs.try_clone().expect("clone"));
        let (ours, seen) = (Arc::new(ours), Arc::new(Mutex::new(Vec::new())));
        let mut shell = Command::new("setsid");
        // It must be the terminal's own session, or it gets no signal about a new size.
        shell.arg("--ctty").arg("--wait").arg(program).args(words);
        shell.env("KUBECONFIG", up.kubeconfig()).env("TERM", "vt220");
        let child = shell.stdin(end()).stdout(end()).stderr(end()).spawn().expect("setsid");
        let (reader, screen) = (ours.clone(), seen.clone());
        std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(count @ 1..) = rustix::io::read(&*reader, &mut chunk) {
                screen.lock().expect("lock").extend_from_slice(&chunk[..count]);
            }
        });
        Screen { ours, theirs, seen, child }
    }

    fn size(&self, columns: u16, rows: u16) {
        let size = Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&*self.ours, size).expect("resized");
    }

    pub(crate) fn types(&self, keys: &str) {
        assert_eq!(rustix::io::write(&*self.ours, keys.as_bytes()).expect("typed"), keys.len());
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().expect("lock")).into_owned()
    }

    #[track_caller]
    pub(crate) fn shows(&self, text: &str) {
        until(&format!("{text:?} on the screen"), || self.text().contains(text));
    }

    /// Waits until the program has ended; its exit status.
    pub(crate) fn ends(&mut self) -> Option<i32> {
        self.child.wait().expect("wait").code()
    }

    fn is_raw(&self) -> bool {
        !tcgetattr(&self.theirs).expect("termios").local_modes.contains(LocalModes::ICANON)
    }
}

#[test]
fn shell_has_a_terminal() {
    hutch_testkit::require!(root, kubectl);
    let up = started();
    ok(&up, &["exec", "notes", "--", "true"]);
    let mut screen = Screen::start(&up, &["shell", "notes"]);
    screen.size(100, 40);
    let before = tcgetattr(&screen.theirs).expect("termios");
    assert!(!screen.is_raw());
    until("the terminal is raw", || screen.is_raw());
    screen.types("echo \"<$TERM> $(tty >/dev/null && echo terminal)\"\r");
    screen.shows("<vt220> terminal");
    screen.types("stty size\r");
    screen.shows("40 100");
    screen.size(120, 50);
    until("the new size arrives", || {
        screen.types("stty size\r");
        std::thread::sleep(std::time::Duration::from_millis(100));
        screen.text().contains("50 120")
    });
    // An interrupt is a key: it ends what runs inside, and not the shell.
    screen.types("sleep 86393\r");
    until("it sleeps", || running("sleep 86393"));
    screen.types("\x03");
    until("it is interrupted", || !running("sleep 86393"));
    screen.types("exit 9\r");
    assert_eq!(screen.child.wait().expect("wait").code(), Some(9));
    let after = tcgetattr(&screen.theirs).expect("termios");
    assert_eq!(
        (after.local_modes, after.input_modes, after.output_modes, after.control_modes),
        (before.local_modes, before.input_modes, before.output_modes, before.control_modes)
    );
}

#[test]
fn terminal_is_restored_after_a_signal() {
    hutch_testkit::require!(root, kubectl);
    let up = started();
    let mut screen =
        Screen::start(&up, &["exec", "-it", "notes", "--", "sh", "-c", "echo mar''ker; sleep 86394"]);
    screen.shows("marker");
    assert!(screen.is_raw());
    kill_process(Pid::from_child(&screen.child), Signal::TERM).expect("SIGTERM");
    assert_eq!(screen.child.wait().expect("wait").code(), Some(143));
    assert!(!screen.is_raw());
    until("the command has ended", || !running("sleep 86394"));
}

#[test]
fn wait_rewrites_one_line() {
    hutch_testkit::require!(root, kubectl);
    let up = started();
    ok(&up, &["suspend", "notes"]);
    let mut screen = Screen::start(&up, &["resume", "notes"]);
    screen.shows("\r\x1b[Kwaiting for sandbox notes to be ready: ");
    screen.shows("sandbox notes is ready");
    assert_eq!(screen.child.wait().expect("wait").code(), Some(0));
    let text = screen.text();
    assert_eq!(text.matches('\n').count(), 1, "{text:?}");
    assert!(text.contains("\r\x1b[Ksandbox notes is ready"), "the line is gone: {text:?}");
}
