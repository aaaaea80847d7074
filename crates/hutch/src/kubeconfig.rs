//! The kubeconfig that `hutch up` writes: address of the API, certificate authority, admin credential.

use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Writes the file atomically, with mode 0600.
pub(crate) fn write(file: &Path, api: SocketAddr, authority_pem: &str, token: &str) -> anyhow::Result<()> {
    put(file, &text(api, authority_pem, token))
}

/// Writes a new file with mode 0600, or fails if there is one.
pub(crate) fn write_new(file: &Path, text: &str) -> anyhow::Result<()> {
    create(file, text).with_context(|| format!("cannot write the kubeconfig {}", file.display()))
}

/// Creates a file with mode 0600 that is never seen half written.
fn create(file: &Path, text: &str) -> std::io::Result<()> {
    // Not a file of `tempfile`, which has an absolute path: the folders above may be closed to this process.
    let fresh = folder_of(file).join(format!(".new{:016x}", rand::random::<u64>()));
    let named = || {
        let mut open = std::fs::File::options().write(true).create_new(true).mode(0o600).open(&fresh)?;
        open.write_all(text.as_bytes())?;
        open.sync_all()?;
        // A link does not replace a file.
        std::fs::hard_link(&fresh, file)
    };
    let result = named();
    // What an interrupted start left does no harm.
    let _ = std::fs::remove_file(&fresh);
    result
}

fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Writes the text of a kubeconfig atomically, with mode 0600.
fn put(file: &Path, text: &str) -> anyhow::Result<()> {
    let folder = folder_of(file);
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    // An equal file is not written again: the disk may be full.
    let same = |found: std::fs::Metadata| found.is_file() && found.mode() & 0o7777 == 0o600;
    if std::fs::symlink_metadata(file).is_ok_and(same)
        && std::fs::read(file).is_ok_and(|old| old == text.as_bytes())
    {
        return Ok(());
    }
    let put = || -> std::io::Result<()> {
        let mut fresh = tempfile::Builder::new().prefix(".kubeconfig").tempfile_in(folder)?;
        fresh.write_all(text.as_bytes())?;
        fresh.as_file().sync_all()?;
        fresh.persist(file).map_err(|error| error.error)?;
        Ok(())
    };
    put().with_context(|| format!("cannot write the kubeconfig {}", file.display()))
}

fn text(api: SocketAddr, authority_pem: &str, token: &str) -> String {
    // A server on all addresses is reachable on loopback.
    let api = if api.ip().is_unspecified() { SocketAddr::from(([127, 0, 0, 1], api.port())) } else { api };
    let authority = STANDARD.encode(authority_pem);
    format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: hutch\n  cluster:\n    server: https://{api}\n    \
         certificate-authority-data: {authority}\nusers:\n- name: admin\n  user:\n    token: {token}\ncontexts:\n\
         - name: hutch\n  context: {{cluster: hutch, user: admin, namespace: default}}\ncurrent-context: hutch\n"
    )
}

/// Returns the kubeconfig of a user with a client certificate.
pub(crate) fn of_user(
    server: &str,
    authority_pem: &str,
    name: &str,
    certificate: &[u8],
    key: &str,
) -> String {
    let [authority, certificate, key] =
        [authority_pem.as_bytes(), certificate, key.as_bytes()].map(|text| STANDARD.encode(text));
    format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: hutch\n  cluster:\n    server: {server}\n    \
         certificate-authority-data: {authority}\nusers:\n- name: {name}\n  user:\n    \
         client-certificate-data: {certificate}\n    client-key-data: {key}\ncontexts:\n\
         - name: hutch\n  context: {{cluster: hutch, user: {name}, namespace: default}}\n\
         current-context: hutch\n"
    )
}

/// Encodes bytes as PEM.
pub(crate) fn pem(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines = text.as_bytes().chunks(64).map(String::from_utf8_lossy);
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.collect::<Vec<_>>().join("\n"))
}

/// Returns the credential of a data folder, which is created once in a file of mode 0600.
pub(crate) fn admin_token(file: &Path) -> anyhow::Result<String> {
    let unusable = || format!("cannot use the admin credential {}", file.display());
    match std::fs::read_to_string(file) {
        Ok(token) if token.trim().len() >= 32 => return Ok(token.trim().to_owned()),
        Ok(_) => anyhow::bail!("{} is damaged: remove it, and a new credential is made", file.display()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(unusable),
    }
    let bytes: [u8; 32] = rand::random();
    let token = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes);
    create(file, &token).with_context(unusable)?;
    Ok(token)
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn kubeconfig_is_readable_by_its_owner_alone() {
        let folder = tempfile::tempdir().expect("tempdir");
        let file = folder.path().join("deep/kubeconfig");
        write(&file, SocketAddr::from(([0, 0, 0, 0], 6443)), "PEM", "secret").expect("written");
        assert_eq!(std::fs::metadata(&file).expect("stat").mode() & 0o777, 0o600);
        assert!(std::fs::read_to_string(&file).expect("read").contains("server: https://127.0.0.1:6443\n"));
    }

    #[test]
    fn credential_is_kept() {
        let folder = tempfile::tempdir().expect("tempdir");
        let file = folder.path().join("token");
        let first = admin_token(&file).expect("made");
        assert_eq!(first, admin_token(&file).expect("read"));
        assert_eq!(std::fs::metadata(&file).expect("stat").mode() & 0o777, 0o600);
    }
}
