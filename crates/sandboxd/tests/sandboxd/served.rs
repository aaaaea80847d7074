//! The real program on a free port, and a client that sends and reads plain bytes.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

pub(crate) struct Served {
    child: Child,
    pub(crate) port: u16,
    pub(crate) rest: u16,
    pub(crate) grpc: u16,
    pub(crate) folder: tempfile::TempDir,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

pub(crate) fn serve() -> Served {
    serve_with(&[])
}

/// Starts it as entry point of a command.
pub(crate) fn serve_for(words: &[&str], environment: &[(&str, &str)]) -> Served {
    started(&[], environment, &[&["--"], words].concat())
}

pub(crate) fn serve_with(environment: &[(&str, &str)]) -> Served {
    started(&[], environment, &[])
}

/// Starts it through another program, with it as the command.
pub(crate) fn serve_under(wrapper: &[&str]) -> Served {
    started(wrapper, &[], &[])
}

fn started(wrapper: &[&str], environment: &[(&str, &str)], more: &[&str]) -> Served {
    let folder = tempfile::tempdir().unwrap();
    if !wrapper.is_empty() {
        // The wrapper may run it as another user.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(folder.path(), open).unwrap();
    }
    let words = [wrapper, &[env!("CARGO_BIN_EXE_hutch-sandboxd")]].concat();
    let mut command = Command::new(words[0]);
    command
        .args(&words[1..])
        .args(["--port=0", "--rest-port=0", "--grpc-port=0", "--base-dir"])
        .arg(folder.path().join("app"))
        .args(more)
        .current_dir(folder.path());
    command.envs(environment.iter().copied()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    let port = |name: &str| {
        let word = line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        word.and_then(|port| port.parse().ok()).unwrap_or_else(|| panic!("{name} in {line:?}"))
    };
    Served { port: port("http"), rest: port("rest"), grpc: port("grpc"), child, folder }
}

impl Served {
    pub(crate) fn app(&self) -> PathBuf {
        self.folder.path().join("app")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn connect(&self) -> TcpStream {
        connect(self.port)
    }

    pub(crate) fn send(&self, bytes: &[u8]) -> Answer {
        let mut stream = self.connect();
        stream.write_all(bytes).unwrap();
        read_answer(&mut BufReader::new(stream))
    }

    pub(crate) fn get(&self, target: &str) -> Answer {
        self.send(format!("GET {target} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes())
    }

    pub(crate) fn post(&self, target: &str, kind: &str, body: &[u8]) -> Answer {
        let head = format!(
            "POST {target} HTTP/1.1\r\nhost: x\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        self.send(&[head.as_bytes(), body].concat())
    }

    pub(crate) fn execute(&self, command: &str) -> serde_json::Value {
        self.execute_with(&serde_json::json!({ "command": command }))
    }

    pub(crate) fn execute_with(&self, body: &serde_json::Value) -> serde_json::Value {
        let answer = self.post("/execute", "application/json", body.to_string().as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()
    }

    pub(crate) fn upload(&self, name: &str, content: &[u8]) -> Answer {
        let head =
            format!("--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\n");
        self.post(
            "/upload",
            "multipart/form-data; boundary=b",
            &[head.as_bytes(), content, b"\r\n--b--\r\n"].concat(),
        )
    }

    /// Waits until it has ended by itself.
    pub(crate) fn ended(&mut self) -> std::process::ExitStatus {
        self.child.wait().unwrap()
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    pub(crate) fn stop(&mut self) -> std::process::ExitStatus {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.child.wait().unwrap()
    }
}

pub(crate) fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(hutch_testkit::wait::WAIT_LIMIT)).unwrap();
    stream
}

pub(crate) fn read_answer(stream: &mut impl BufRead) -> Answer {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(stream.read_line(&mut head).unwrap(), 0, "the connection ended: {head:?}");
    }
    let mut answer = Answer { status: head[9..12].parse().unwrap(), head, body: Vec::new() };
    let length = answer.header("content-length").map_or(0, |length| length.parse().unwrap());
    answer.body.resize(length, 0);
    if !answer.head.is_empty() {
        stream.read_exact(&mut answer.body).unwrap();
    }
    answer
}

/// Returns true if a process with this command line is alive.
pub(crate) fn alive(command: &str) -> bool {
    let processes = Path::new("/proc").read_dir().unwrap().flatten();
    processes.into_iter().any(|process| {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).replace('\0', " ").trim_end() == command
    })
}
