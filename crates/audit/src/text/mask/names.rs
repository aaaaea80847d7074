//! Names that announce a secret: of options, variables, headers and parameters, and the options of common programs.

/// Parts of names whose values are secrets, in lower case.
const SECRET_NAMES: [&str; 24] = [
    "authorization",
    "cookie",
    "token",
    "secret",
    "password",
    "passwd",
    "passphrase",
    "credential",
    "apikey",
    "api-key",
    "api_key",
    "accesskey",
    "access-key",
    "access_key",
    "authkey",
    "auth-key",
    "auth_key",
    "accountkey",
    "privatekey",
    "signature",
    "sessionid",
    "session-id",
    "session_id",
    "connectionstring",
];
/// Whole names.
const WHOLE_NAMES: [&str; 10] = ["pwd", "pass", "pw", "auth", "x-auth", "sig", "sas", "jwt", "otp", "_auth"];
/// Whole names of parameters of a query.
const QUERY_NAMES: [&str; 8] = ["key", "code", "sid", "session", "ticket", "assertion", "nonce", "state"];
/// Settings whose value is the next word.
pub(super) const CONFIG_WORDS: [&str; 5] =
    ["aws_secret_access_key", "aws_session_token", "_auth", "_authtoken", "_password"];

/// Options of programs whose values are secrets.
pub(super) struct Program {
    /// Names of the programs.
    names: &'static [&'static str],
    /// Options of one letter, also joined with others or with their value.
    pub(super) short: &'static str,
    /// Other options of one letter that have a value: what follows the letter is no option.
    pub(super) valued: &'static str,
    /// Options with their dashes.
    pub(super) long: &'static [&'static str],
    /// A value of a short option is never the next word.
    pub(super) is_glued: bool,
}

const fn program(
    names: &'static [&'static str],
    short: &'static str,
    long: &'static [&'static str],
) -> Program {
    Program { names, short, valued: "", long, is_glued: false }
}

const PROGRAMS: [Program; 18] = [
    Program {
        valued: "AcCdDeFHKmoPQrtTwxXyYz",
        ..program(
            &["curl"],
            "uUEb",
            &["--user", "--proxy-user", "--cert", "--oauth2-bearer", "--cookie", "--pass", "--aws-sigv4"],
        )
    },
    program(&["wget"], "", &["--http-user", "--proxy-user"]),
    program(&["http", "https", "xh"], "a", &["--auth"]),
    Program {
        is_glued: true,
        ..program(&["mysql", "mysqldump", "mysqladmin", "mysqlimport", "mariadb", "mariadb-dump"], "p", &[])
    },
    program(&["sshpass"], "p", &[]),
    program(&["mongo", "mongosh", "mongodump", "mongorestore", "mongoexport", "mongoimport"], "p", &[]),
    program(&["redis-cli", "valkey-cli"], "a", &["--pass"]),
    program(
        &["docker", "podman", "nerdctl", "buildah", "skopeo", "helm", "oras", "crane"],
        "p",
        &["--creds", "--src-creds", "--dest-creds"],
    ),
    program(&["kubectl", "oc"], "", &["--from-literal", "--docker-password"]),
    program(&["ldapsearch", "ldapadd", "ldapmodify", "ldapdelete", "ldapwhoami"], "w", &[]),
    program(&["smbclient", "rpcclient", "smbget"], "U", &["--user"]),
    program(&["mosquitto_pub", "mosquitto_sub", "sqlcmd", "bcp", "ipmitool", "unzip", "zip"], "P", &[]),
    Program { is_glued: true, ..program(&["7z", "7za", "7zz", "7zr", "rar", "unrar"], "p", &[]) },
    program(&["lftp"], "u", &["--user"]),
    program(&["openssl"], "", &["-passin", "-passout", "-pass", "-k", "-K", "-hmac", "-macopt"]),
    program(&["snmpget", "snmpwalk", "snmpset"], "cAX", &[]),
    program(&["az"], "p", &["--account-key", "--sas-token"]),
    program(&["twine", "rabbitmqadmin", "xfreerdp", "influx"], "p", &[]),
];

impl Program {
    /// Returns the program of this name or path.
    pub(super) fn find(word: &str) -> Option<&'static Program> {
        let name = word.rsplit('/').next().unwrap_or(word);
        PROGRAMS.iter().find(|program| program.names.contains(&name))
    }
}

/// Returns true for the name of an option, a variable or a header with a secret.
pub(super) fn names_secret(name: &str) -> bool {
    let name = name.trim_start_matches(['-', '/', '$']).to_ascii_lowercase();
    SECRET_NAMES.iter().any(|secret| name.contains(secret))
        || WHOLE_NAMES.contains(&name.as_str())
        || ["_pass", "_pwd", "-pwd"].iter().any(|end| name.ends_with(end))
        || ((name.ends_with("-key") || name.ends_with("_key")) && !name.contains("public"))
}

/// Returns true for the name of a parameter of a query with a secret.
pub(super) fn names_secret_of_url(name: &str) -> bool {
    QUERY_NAMES.contains(&name.to_ascii_lowercase().as_str())
}

/// Returns true for the name of an environment variable.
pub(super) fn is_variable(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase() || c == '_')
        && name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
}
