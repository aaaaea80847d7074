use std::fs::DirBuilder;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::DirBuilderExt;
use std::time::{Duration, Instant, SystemTime};

use hutch_serve::{Listener, ServerCertificate, Shutdown, write_private};
use kube::Client;

use crate::convert::{self, Bounds};
use crate::key_material::KeyMaterial;
use crate::operator_files::{OperatorFiles, Pair};
use crate::rotator::CertificateRotator;
use crate::settings::{CERTIFICATE_FILE, KEY_FILE};
use crate::{Error, Settings};

/// How long a start waits for an API server that does not answer.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Pause between two attempts of a start.
const START_PAUSE: Duration = Duration::from_secs(1);

/// Intervals between reconciles.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// Between two looks at Secret and definitions.
    pub(crate) cluster: Duration,
    /// Between two looks at files.
    pub(crate) files: Duration,
    /// Between writing a new authority into the definitions and showing its certificate: API servers hear of the
    /// definitions by a watch.
    pub(crate) hearing: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Pace {
            cluster: Duration::from_secs(60),
            files: Duration::from_secs(10),
            hearing: Duration::from_secs(5),
        }
    }
}

/// A webhook that has its port and its certificate.
pub struct Webhook {
    listener: Listener,
    certificate: ServerCertificate,
    source: Source,
    pub(crate) pace: Pace,
}

enum Source {
    Managed { rotator: Box<CertificateRotator>, settings: Settings, shown: KeyMaterial },
    OperatorFiles { files: OperatorFiles, shown: Pair },
}

/// Runs the webhook until the shutdown is triggered; with [`Settings::enabled`] unset only waits for that.
///
/// # Errors
/// As [`start`].
pub async fn run(client: Client, settings: Settings, shutdown: Shutdown) -> Result<(), Error> {
    if !settings.enabled {
        shutdown.wait().await;
        return Ok(());
    }
    let webhook = tokio::select! {
        started = start(client, settings) => started?,
        () = shutdown.wait() => return Ok(()),
    };
    webhook.run(shutdown).await
}

/// Takes the port, gets the certificate and, when it is managed here, sees to it that the definitions trust it. Afterwards
/// connections are taken in, and served once [`Webhook::run`] runs.
///
/// An API server that does not answer is waited for, a minute at most.
///
/// # Errors
/// [`Error::Setting`]; [`Error::Serve`] when the port is taken; [`Error::Files`] when given files cannot be used;
/// [`Error::Api`] when the API server refuses, for example for want of a role.
pub async fn start(client: Client, settings: Settings) -> Result<Webhook, Error> {
    settings.check()?;
    let listener = listen(settings.port).await?;
    let (certificate, source) = if settings.manage_certs {
        let mut rotator = Box::new(CertificateRotator::new(client, settings.clone()));
        let shown = first_look(&mut rotator).await?;
        let certificate = ServerCertificate::from_pem(shown.certificate.as_bytes(), shown.key.as_bytes())?;
        write_files(&settings, &shown);
        (certificate, Source::Managed { rotator, settings, shown })
    } else {
        let files = OperatorFiles::new(&settings);
        let shown = files.read()?;
        let certificate = shown.load()?;
        if let Some(problem) = shown.out_of_date(SystemTime::now()) {
            tracing::error!("{problem}");
        }
        (certificate, Source::OperatorFiles { files, shown })
    };
    tracing::info!(address = %listener.address(), "the conversion webhook listens");
    Ok(Webhook { listener, certificate, source, pace: Pace::default() })
}

impl Webhook {
    /// Where it listens, with the port that was picked.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Serves and keeps the certificate until the shutdown is triggered. What fails meanwhile is logged and tried again.
    ///
    /// # Errors
    /// [`Error::Serve`] when TLS cannot be set up.
    pub async fn run(self, shutdown: Shutdown) -> Result<(), Error> {
        let Webhook { listener, certificate, source, pace } = self;
        let tls = certificate.server_config()?;
        let serve = listener.serve_tls(convert::app(Bounds::default()), tls, shutdown.clone());
        let keep = async {
            match source {
                Source::Managed { rotator, settings, shown } => {
                    manage(rotator, &settings, shown, &certificate, pace).await;
                }
                Source::OperatorFiles { files, shown } => watch(&files, shown, &certificate, pace).await,
            }
        };
        tokio::select! {
            () = serve => {}
            () = keep => {}
        }
        Ok(())
    }
}

/// All addresses, of both families where there are two.
async fn listen(port: u16) -> Result<Listener, Error> {
    match Listener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))).await {
        Err(hutch_serve::Error::Listen { .. }) => {
            Ok(Listener::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))).await?)
        }
        other => Ok(other?),
    }
}

async fn first_look(rotator: &mut CertificateRotator) -> Result<KeyMaterial, Error> {
    let begun = Instant::now();
    loop {
        match rotator.look(SystemTime::now()).await {
            Err(error) if error.is_passing() && begun.elapsed() < START_LIMIT => {
                tracing::warn!(%error, "the webhook's certificates are not there yet");
                tokio::time::sleep(START_PAUSE).await;
            }
            outcome => return outcome,
        }
    }
}

/// Never ends.
async fn manage(
    mut rotator: Box<CertificateRotator>,
    settings: &Settings,
    mut shown: KeyMaterial,
    certificate: &ServerCertificate,
    pace: Pace,
) {
    loop {
        tokio::time::sleep(pace.cluster).await;
        match rotator.look(SystemTime::now()).await {
            Ok(material) if material == shown => {}
            Ok(material) => {
                tokio::time::sleep(pace.hearing).await;
                let pair = (material.certificate.as_bytes(), material.key.as_bytes());
                match certificate.replace(pair.0, pair.1) {
                    Ok(()) => tracing::info!("the webhook shows its new certificate"),
                    Err(error) => tracing::error!(%error, "the webhook's new certificate cannot be used"),
                }
                write_files(settings, &material);
                shown = material;
            }
            Err(error) => tracing::warn!(%error, "the webhook's certificates cannot be looked after"),
        }
    }
}

/// Never ends.
async fn watch(files: &OperatorFiles, mut shown: Pair, certificate: &ServerCertificate, pace: Pace) {
    let mut shown_problem = shown.out_of_date(SystemTime::now());
    let mut refused: Option<String> = None;
    loop {
        tokio::time::sleep(pace.files).await;
        let changed = match files.read() {
            Ok(pair) if pair == shown => Ok(None),
            Ok(pair) => pair.replace(certificate).map(|()| Some(pair)),
            Err(error) => Err(error),
        };
        match changed {
            Ok(new) => {
                refused = None;
                if let Some(new) = new {
                    tracing::info!("the webhook shows the certificate that was put in place");
                    shown = new;
                }
            }
            Err(error) => {
                // Halfway through a change certificate and key do not go together: the next read will show.
                let text = error.to_string();
                if refused.as_ref() != Some(&text) {
                    tracing::warn!("{text}; the webhook continues with the certificate that it has");
                }
                refused = Some(text);
            }
        }
        let problem = shown.out_of_date(SystemTime::now());
        if let Some(problem) = problem.as_ref().filter(|problem| shown_problem.as_ref() != Some(problem)) {
            tracing::error!("{problem}");
        }
        shown_problem = problem;
    }
}

/// For other readers: the webhook itself does not read them, so it also runs without them.
fn write_files(settings: &Settings, material: &KeyMaterial) {
    let folder = &settings.cert_dir;
    let write = || -> Result<(), hutch_serve::Error> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(folder)
            .map_err(|cause| hutch_serve::Error::File { path: folder.clone(), cause })?;
        write_private(&folder.join(CERTIFICATE_FILE), &material.certificate)?;
        write_private(&folder.join(KEY_FILE), &material.key)
    };
    if let Err(error) = write() {
        tracing::warn!(%error, "the webhook's certificate is not in its folder");
    }
}
