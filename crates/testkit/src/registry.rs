//! Debian's `docker-registry` on a port of its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// User of a registry with a password.
pub const USER: &str = "reader";
/// Their password.
pub const PASSWORD: &str = "reader-password";
/// Both in the form of htpasswd.
const PASSWORDS: &str = "reader:$2b$04$M2Gf4DSUYZMhXdI6i3rZZ.COWrirClS44GZjDuy77zhXPhoPeg/zm\n";
/// File of its folder with the authority that a mirror trusts.
const TRUSTED: &str = "trusted.pem";
/// Time within which it listens.
const LIMIT: Duration = Duration::from_secs(60);

/// A running registry; ended when dropped.
#[derive(Debug)]
pub struct Registry {
    child: Child,
    folder: TempDir,
    /// Host and port.
    pub host: String,
}

impl Drop for Registry {
    fn drop(&mut self) {
        // Errors cannot be reported from `drop`; it may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Registry {
    /// Starts a registry with TLS and a password. The authority of its certificate is in `ca.pem` of its folder.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start() -> Registry {
        Registry::secured(true, None)
    }

    /// Starts a registry with TLS that everyone may read and write.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start_open() -> Registry {
        Registry::secured(false, None)
    }

    /// Starts a registry as [`Registry::start`] that passes on what an open one has, and keeps it.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start_mirror_of(origin: &Registry) -> Registry {
        Registry::secured(true, Some(origin))
    }

    fn secured(has_password: bool, origin: Option<&Registry>) -> Registry {
        let folder = tempfile::tempdir().expect("tempdir");
        let path = |name: &str| folder.path().join(name);
        let write = |name: &str, text: &str| std::fs::write(path(name), text).expect("written");
        let (key, mut authority) =
            (rcgen::KeyPair::generate().expect("a key"), rcgen::CertificateParams::default());
        // Its name must not be that of the certificate below, which would then count as self-signed.
        authority.distinguished_name.push(rcgen::DnType::CommonName, "test authority");
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        write("ca.pem", &authority.self_signed(&key).expect("signed").pem());
        let issuer = rcgen::Issuer::new(authority, key);
        let key = rcgen::KeyPair::generate().expect("a key");
        let certificate = rcgen::CertificateParams::new(["localhost", "registry.example"].map(str::to_owned))
            .expect("a name");
        write("server.pem", &certificate.signed_by(&key, &issuer).expect("signed").pem());
        write("server.key", &key.serialize_pem());
        write("htpasswd", PASSWORDS);
        let [certificate, key, passwords] = ["server.pem", "server.key", "htpasswd"].map(path);
        let tls = format!(", tls: {{certificate: {certificate:?}, key: {key:?}}}");
        let mut more = String::new();
        if has_password {
            more.push_str(&format!("auth: {{htpasswd: {{realm: test, path: {passwords:?}}}}}\n"));
        }
        if let Some(origin) = origin {
            // The only authority that it trusts.
            std::fs::copy(origin.path("ca.pem"), path(TRUSTED)).expect("copied");
            more.push_str(&format!("proxy: {{remoteurl: 'https://{}'}}\n", origin.host));
        }
        Registry::serve(folder, &tls, &more)
    }

    /// Starts a registry without TLS whose content, in the form of the registry, is in `content` of the folder.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start_plain(folder: TempDir) -> Registry {
        Registry::serve(folder, "", "")
    }

    /// Ends the program.
    ///
    /// # Panics
    /// When it cannot be ended.
    pub fn stop(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
    }

    fn serve(folder: TempDir, of_http: &str, more: &str) -> Registry {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        let content = folder.path().join("content");
        let config = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {content:?}}}}}\n\
             http: {{addr: '127.0.0.1:{port}'{of_http}}}\n{more}"
        );
        let file = folder.path().join("config.yml");
        std::fs::write(&file, config).expect("written");
        let mut child = Command::new(crate::tool("docker-registry").expect("docker-registry"));
        child.arg("serve").arg(file).stdout(Stdio::null()).stderr(Stdio::null());
        child.env("SSL_CERT_FILE", folder.path().join(TRUSTED));
        let child = child.spawn().expect("it starts");
        let registry = Registry { child, folder, host: format!("localhost:{port}") };
        let started = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(started.elapsed() < LIMIT, "docker-registry does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        registry
    }

    /// Folder that is removed with the registry.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Path in that folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Sends a request with TLS and the password, and returns the answer.
    ///
    /// # Panics
    /// When the registry refuses it.
    pub fn curl(&self, arguments: &[&str], path: &str) -> String {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--fail", "--user", &format!("{USER}:{PASSWORD}")]);
        curl.arg("--cacert").arg(self.path("ca.pem")).args(arguments);
        let url = match path.starts_with("https:") {
            true => path.to_owned(),
            false => format!("https://{}{path}", self.host),
        };
        let output = curl.arg(url).output().expect("curl");
        assert!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    /// Sends a body with PUT.
    ///
    /// # Panics
    /// When the registry refuses it.
    pub fn put(&self, kind: &str, bytes: &[u8], path: &str) {
        let body = self.path("body");
        std::fs::write(&body, bytes).expect("written");
        let (kind, data) = (format!("Content-Type: {kind}"), format!("@{}", body.display()));
        self.curl(&["--request", "PUT", "--header", &kind, "--data-binary", &data], path);
    }

    /// Uploads a blob with its digest to a repository.
    ///
    /// # Panics
    /// When the registry refuses it.
    pub fn put_blob(&self, repository: &str, digest: &str, bytes: &[u8]) {
        let start = format!("/v2/{repository}/blobs/uploads/");
        let head = self.curl(&["--dump-header", "-", "--request", "POST"], &start);
        let location = head.lines().filter_map(|line| line.split_once(": "));
        let (_, location) =
            { location }.find(|(name, _)| name.eq_ignore_ascii_case("location")).expect("where to upload");
        self.put("application/octet-stream", bytes, &format!("{}&digest={digest}", location.trim()));
    }
}
