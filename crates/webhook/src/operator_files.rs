//! Certificate files that the operator provides.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use hutch_serve::ServerCertificate;

use crate::key_material::{day, validity_of};
use crate::settings::{CERTIFICATE_FILE, KEY_FILE};
use crate::{Error, Settings};

/// One file with chain and key, looked for when neither file of the default names is there.
const COMBINED_FILE: &str = "cert.pem";
/// Bytes of a file at most. A chain is a few kilobytes.
const FILE_BYTES: u64 = 1 << 20;

/// Where the files are.
pub(crate) struct OperatorFiles {
    folder: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
    by_default: bool,
}

/// Their content. Not `Debug`: the key is secret.
#[derive(PartialEq, Eq)]
pub(crate) struct Pair {
    certificate: Vec<u8>,
    key: Vec<u8>,
    from: PathBuf,
}

impl OperatorFiles {
    pub(crate) fn new(settings: &Settings) -> OperatorFiles {
        OperatorFiles {
            folder: settings.cert_dir.clone(),
            certificate: settings.cert_dir.join(&settings.cert_name),
            key: settings.cert_dir.join(&settings.key_name),
            by_default: settings.cert_name == CERTIFICATE_FILE && settings.key_name == KEY_FILE,
        }
    }

    /// Reads the files as they are now.
    pub(crate) fn read(&self) -> Result<Pair, Error> {
        let (certificate, key) = (read(&self.certificate)?, read(&self.key)?);
        let (certificate, key) = match (certificate, key) {
            (Some(certificate), Some(key)) => (certificate, key),
            (None, None) if self.by_default => {
                let file = self.folder.join(COMBINED_FILE);
                let Some(both) = read(&file)? else { return Err(self.missing(&self.certificate)) };
                return Ok(Pair { certificate: both.clone(), key: both, from: file });
            }
            (None, _) => return Err(self.missing(&self.certificate)),
            (_, None) => return Err(self.missing(&self.key)),
        };
        Ok(Pair { certificate, key, from: self.certificate.clone() })
    }

    fn missing(&self, file: &Path) -> Error {
        let other = if self.by_default { format!(" (nor is {COMBINED_FILE})") } else { String::new() };
        Error::Files(format!(
            "{} is not there{other}: with --manage-webhook-certs=false the webhook's certificate and key must be in \
             --webhook-cert-dir {}",
            file.display(),
            self.folder.display()
        ))
    }
}

impl Pair {
    /// To be shown from now on.
    pub(crate) fn load(&self) -> Result<ServerCertificate, Error> {
        ServerCertificate::from_pem(&self.certificate, &self.key).map_err(|error| self.unusable(&error))
    }

    /// Shown in place of another.
    pub(crate) fn replace(&self, current: &ServerCertificate) -> Result<(), Error> {
        current.replace(&self.certificate, &self.key).map_err(|error| self.unusable(&error))
    }

    fn unusable(&self, error: &hutch_serve::Error) -> Error {
        Error::Files(format!("{}: {error}", self.from.display()))
    }

    /// Why clients refuse it at that time, if they do.
    pub(crate) fn out_of_date(&self, now: SystemTime) -> Option<String> {
        let (from, to) = validity_of(&self.certificate)?;
        let file = self.from.display();
        if now > to {
            Some(format!("the certificate in {file} expired {}; put a new one there", day(to)))
        } else if now < from {
            Some(format!("the certificate in {file} is not valid before {}", day(from)))
        } else {
            None
        }
    }
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    let failed = |error: std::io::Error| Error::Files(format!("cannot read {}: {error}", path.display()));
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(failed(error)),
    };
    let mut bytes = Vec::new();
    file.take(FILE_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES {
        return Err(Error::Files(format!("{} is larger than {FILE_BYTES} bytes", path.display())));
    }
    Ok(Some(bytes))
}
