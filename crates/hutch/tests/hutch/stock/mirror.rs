//! A mirror of one package, made for the test.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;

use sha2::{Digest, Sha256};

use crate::harness::succeeded;
use crate::policies::SERVER;

const CONTROL: &str = "Package: greeting\nVersion: 1.0\nArchitecture: all\nMaintainer: Test <test@example.com>\n\
    Description: greets\n";
/// Creates an account and gives it a folder, as packages of services do.
const POSTINST: &str = "#!/bin/sh\nset -e\n\
    useradd --system --no-create-home --shell /usr/sbin/nologin greeting\n\
    chown greeting:nogroup /var/lib/greeting\n";

/// A server of a repository with the package `greeting`.
pub(super) struct Mirror {
    pub(super) port: u16,
    _folder: tempfile::TempDir,
}

impl Mirror {
    pub(super) fn start() -> Mirror {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("tempdir");
        let (tree, package) = (folder.path().join("tree"), folder.path().join("greeting.deb"));
        for part in ["DEBIAN", "usr/bin", "var/lib/greeting"] {
            fs::create_dir_all(tree.join(part)).expect("folder");
        }
        let write = |path: &str, bytes: &[u8], mode| {
            fs::write(tree.join(path), bytes).expect("written");
            fs::set_permissions(tree.join(path), fs::Permissions::from_mode(mode)).expect("mode");
        };
        write("DEBIAN/control", CONTROL.as_bytes(), 0o644);
        write("DEBIAN/postinst", POSTINST.as_bytes(), 0o755);
        write("usr/bin/greeting", b"#!/bin/sh\necho hello\n", 0o755);
        write("usr/bin/greeting-id", &fs::read("/usr/bin/id").expect("a program"), 0o4755);
        fs::set_permissions(tree.join("var/lib/greeting"), fs::Permissions::from_mode(0o750)).expect("mode");
        let mut build = Command::new("dpkg-deb");
        build.args(["--root-owner-group", "-Zgzip", "--build"]).args([&tree, &package]);
        succeeded("dpkg-deb", &build.output().expect("dpkg-deb"));
        let package = fs::read(package).expect("the package");
        let digest: String = Sha256::digest(&package).iter().map(|byte| format!("{byte:02x}")).collect();
        let index =
            format!("{CONTROL}Filename: pool/greeting.deb\nSize: {}\nSHA256: {digest}\n\n", package.len());
        let listener = TcpListener::bind((SERVER, 0)).expect("a listener");
        let port = listener.local_addr().expect("an address").port();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                // A client that has gone needs no answer.
                let _ = answer(stream.expect("a connection"), &package, index.as_bytes());
            }
        });
        Mirror { port, _folder: folder }
    }
}

/// Answers the requests of one connection.
fn answer(mut stream: TcpStream, package: &[u8], index: &[u8]) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte)? == 0 {
            return Ok(());
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head);
    let path = head.split(' ').nth(1).unwrap_or("");
    let (status, body) = match path.rsplit('/').next() {
        Some("Packages") => ("200 OK", index),
        Some("greeting.deb") => ("200 OK", package),
        _ => ("404 Not Found", &b""[..]),
    };
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len())?;
    stream.write_all(body)
}
