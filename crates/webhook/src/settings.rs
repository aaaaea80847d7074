use std::path::PathBuf;

use hutch_api::syntax::is_label;

use crate::Error;

/// File names that hold when certificates are managed, and by default when they are not.
pub(crate) const CERTIFICATE_FILE: &str = "tls.crt";
pub(crate) const KEY_FILE: &str = "tls.key";

/// How the webhook behaves. The defaults are those of Agent Sandbox; the flag of each field is named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// `--enable-webhook`: whether there is a webhook at all. Without it nothing listens and no definition is changed.
    pub enabled: bool,
    /// `--webhook-port`: TCP port on all addresses; 0 picks a free one.
    pub port: u16,
    /// `--webhook-cert-dir`: the folder of the certificate files.
    pub cert_dir: PathBuf,
    /// `--webhook-cert-name`: name of the certificate file, when it is not managed here.
    pub cert_name: String,
    /// `--webhook-key-name`: name of the key file, when it is not managed here.
    pub key_name: String,
    /// `--webhook-service-name`: the Service by which the API server reaches the webhook.
    pub service_name: String,
    /// `--webhook-namespace`: namespace of that Service and of the Secret with the certificates.
    pub namespace: String,
    /// `--manage-webhook-certs`: whether certificates are made, renewed and written into the definitions here.
    pub manage_certs: bool,
    /// `--cluster-domain`: end of the names of Services, for one more name in the certificate.
    pub cluster_domain: String,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            enabled: true,
            port: 9443,
            cert_dir: "/tmp/k8s-webhook-server/serving-certs".into(),
            cert_name: CERTIFICATE_FILE.into(),
            key_name: KEY_FILE.into(),
            service_name: "agent-sandbox-webhook-service".into(),
            namespace: "agent-sandbox-system".into(),
            manage_certs: true,
            cluster_domain: "cluster.local".into(),
        }
    }
}

impl Settings {
    /// Looks at each field by itself, without the cluster.
    ///
    /// # Errors
    /// [`Error::Setting`] with the flag and what would be right.
    pub fn check(&self) -> Result<(), Error> {
        if !self.enabled {
            return Ok(());
        }
        let wrong = |flag, problem: String| Err(Error::Setting { flag, problem });
        for (flag, name) in [("--webhook-cert-name", &self.cert_name), ("--webhook-key-name", &self.key_name)]
        {
            if name.trim().is_empty() {
                return wrong(flag, "is blank; a file name is wanted, such as tls.crt".into());
            }
        }
        if self.cert_dir.as_os_str().is_empty() {
            return wrong("--webhook-cert-dir", "is empty; a folder is wanted".into());
        }
        for (flag, name) in
            [("--webhook-service-name", &self.service_name), ("--webhook-namespace", &self.namespace)]
        {
            if !is_label(name) {
                let wanted =
                    "at most 63 lower-case letters, digits and dashes, a letter or digit at both ends";
                return wrong(flag, format!("{name:?} is no name of Kubernetes: {wanted}"));
            }
        }
        if !self.cluster_domain.is_empty() && !self.cluster_domain.split('.').all(is_label) {
            let problem = format!("{:?} is no domain name such as cluster.local", self.cluster_domain);
            return wrong("--cluster-domain", problem);
        }
        Ok(())
    }

    /// The name that the API server dials.
    pub(crate) fn server_name(&self) -> String {
        format!("{}.{}.svc", self.service_name, self.namespace)
    }

    /// Every name of the certificate.
    pub(crate) fn names(&self) -> Vec<String> {
        let (service, namespace) = (&self.service_name, &self.namespace);
        let mut names = vec![service.clone(), format!("{service}.{namespace}"), self.server_name()];
        if !self.cluster_domain.is_empty() {
            names.push(format!("{service}.{namespace}.svc.{}", self.cluster_domain));
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_name_the_flag() {
        let good = Settings::default();
        assert!(good.check().is_ok());
        for (bad, flag) in [
            (Settings { cert_name: " ".into(), ..good.clone() }, "--webhook-cert-name"),
            (Settings { key_name: String::new(), ..good.clone() }, "--webhook-key-name"),
            (Settings { cert_dir: PathBuf::new(), ..good.clone() }, "--webhook-cert-dir"),
            (Settings { service_name: "a_b".into(), ..good.clone() }, "--webhook-service-name"),
            (Settings { namespace: "-".into(), ..good.clone() }, "--webhook-namespace"),
            (Settings { cluster_domain: "a..b".into(), ..good.clone() }, "--cluster-domain"),
        ] {
            assert!(bad.check().unwrap_err().to_string().starts_with(flag), "{flag}");
            assert!(Settings { enabled: false, ..bad }.check().is_ok(), "{flag} of what is not used");
        }
    }
}
