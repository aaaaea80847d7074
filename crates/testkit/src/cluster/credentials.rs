use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Context;
use rcgen::{CertificateParams, KeyPair};

/// Writes what the API server proves itself with and whom it knows: `server.crt`, `server.key`, `accounts.key`,
/// `accounts.pub`, `tokens.csv`. Returns the administrator's token.
pub(super) fn write(folder: &Path) -> anyhow::Result<String> {
    let names = ["127.0.0.1", "localhost", "kubernetes.default.svc"].map(String::from);
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(names)?.self_signed(&key)?;
    let accounts = KeyPair::generate()?;
    // A public key whose private key is discarded is as good a random number as any.
    let token: String =
        KeyPair::generate()?.public_key_raw().iter().map(|byte| format!("{byte:02x}")).collect();
    private(&folder.join("server.crt"), &certificate.pem())?;
    private(&folder.join("server.key"), &key.serialize_pem())?;
    private(&folder.join("accounts.key"), &accounts.serialize_pem())?;
    private(&folder.join("accounts.pub"), &accounts.public_key_pem())?;
    private(&folder.join("tokens.csv"), &format!("{token},admin,1,\"system:masters\"\n"))?;
    Ok(token)
}

/// Writes a file that only its owner can read.
pub(super) fn private(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(path)
        .with_context(|| path.display().to_string())?;
    file.write_all(text.as_bytes()).with_context(|| path.display().to_string())
}
