use super::super::Text;

/// Value that no record may have.
const VALUE: &str = "Hunter2xyz";

fn command(line: &str) -> String {
    let arguments: Vec<String> = line.split('~').map(str::to_owned).collect();
    Text::command(&arguments).as_str().to_owned()
}

#[test]
fn known_forms_of_secrets_in_commands_are_masked() {
    // `~` separates arguments, `§` is the secret.
    for form in [
        // Options of common programs.
        "curl~-u~me:§~https://a.example",
        "curl~-sSume:§~https://a.example",
        "/usr/bin/curl~--user~me:§",
        "curl~--user=me:§",
        "curl~-U~me:§",
        "curl~--oauth2-bearer~§",
        "curl~-b~session=§",
        "sudo~curl~-u~me:§",
        "wget~--http-password=§~u",
        "wget~--http-user~§",
        "http~-a~me:§~GET~u",
        "mysql~-p§~db",
        "mysqldump~-uroot~-p§~db",
        "mariadb~--password=§",
        "sshpass~-p~§~ssh~host",
        "sshpass~-p§~ssh~host",
        "mongosh~-u~me~-p~§",
        "redis-cli~-a~§~ping",
        "redis-cli~--pass~§",
        "docker~login~-u~me~-p~§",
        "skopeo~copy~--src-creds~me:§",
        "kubectl~create~secret~generic~a~--from-literal=key=§",
        "kubectl~create~secret~generic~a~--from-literal~key=§",
        "ldapsearch~-D~cn=a~-w~§",
        "smbclient~-U~me%§~//a/b",
        "mosquitto_pub~-P~§",
        "7z~x~-p§~a.7z",
        "unzip~-P~§~a.zip",
        "lftp~-u~me,§~a.example",
        "openssl~enc~-k~§",
        "openssl~rsa~-passin~pass:§",
        "snmpwalk~-c~§~host",
        "az~storage~blob~list~--account-key~§",
        "az~login~-u~me~-p~§",
        "login~--password~§",
        "login~--token=§",
        "tool~--private-key~§",
        "aws~configure~set~aws_secret_access_key~§",
        "npm~config~set~_authToken~§",
        "npm~config~set~_authToken=§",
        "npm~config~set~//registry.example/:_authToken~§",
        "npm~config~set~//registry.example/:_authToken=§",
        "npm~config~set~//registry.example:8443/a/:_authToken=§",
        "npm~config~set~//registry.example:8443/a/:_authToken~§",
        "sh~-c~npm config set //registry.example/:_authToken §",
        "sh~-c~echo '//registry.example/:_authToken=§' > .npmrc",
        // Headers.
        "curl~-H~Authorization: Bearer §",
        "curl~-H~Authorization: Basic §",
        "curl~-H~Authorization: AWS4-HMAC-SHA256 Credential=a/b, Signature=§",
        "curl~-H~Proxy-Authorization: §",
        "curl~-H~X-Auth-Key: §",
        "curl~-H~X-Auth-Key:§",
        "curl~-HX-Auth-Key: §",
        "curl~-HAuthorization:token §",
        "curl~-HAuthorization:token~§",
        "curl~-H~Authorization:token~§",
        "curl~-sHAuthorization: §",
        "sh~-c~curl '-HAuthorization:token §' u",
        "sh~-c~curl -HAuthorization:token § u",
        "curl~-H~x-api-key: a §",
        "curl~-H~PRIVATE-TOKEN: §",
        "curl~-H~X-Vault-Token: §",
        "curl~-H~Ocp-Apim-Subscription-Key: §",
        "curl~-H~x-functions-key: §",
        "curl~-H~x-goog-api-key: §",
        "curl~-H~Cookie: a=b; session=§",
        "curl~-H~Cookie:a=b; session=§",
        "git~-c~http.extraHeader=Authorization: Bearer §~fetch",
        // URLs.
        "git~clone~https://me:§@a.example/b",
        "git~clone~https://§@a.example/b",
        "psql~postgres://me:§@db/x",
        "curl~https://a.example/?sig=§",
        "curl~https://a.example/?a=b&sig=§",
        "curl~https://a.example/?key=§&a=b",
        "curl~https://a.example/?code=§",
        "curl~https://a.example/?X-Amz-Signature=§",
        "curl~https://a.example/?access_token=§",
        "curl~https://a.example/#id_token=§",
        "curl~https://a.example/;jsessionid=§",
        "app~--db=postgres://me:§@db/x",
        "app~me:§@tcp(db:3306)/x",
        "app~DefaultEndpointsProtocol=https;AccountName=a;AccountKey=§",
        "app~Server=a;User Id=b;Password=§",
        // Variables and bodies.
        "env~API_KEY=§~cmd",
        "env~FOO=§~cmd",
        "PASSWORD=§ cmd",
        "PASSWORD=§~cmd",
        "PASSWORD=a,§~cmd",
        "PASSWORD=a#§ cmd",
        "sh~-c~PASSWORD=a\"b §\" cmd",
        "sh~-c~PASSWORD=$'§' cmd",
        "db_pass=§~cmd",
        "python3~-c~import os; os.environ['API_KEY']='§'",
        "python3~-c~import os; os.environ['FOO'] = '§'",
        "python3~-c~os.environ[\"API_KEY\"] = \"§\"",
        "node~-e~process.env['API_KEY']='§'",
        "sh~-c~python3 -c \"os.environ['API_KEY']='§'\"",
        "curl~-d~user=a&password=§",
        "curl~-d~{\"password\":\"§\"}",
        "curl~-d~{\"user\": \"a\", \"apiKey\" : \"§\"}",
        "curl~-d~{\\\"password\\\":\\\"§\\\"}",
        "curl~-d~password: §",
        // Scripts.
        "sh~-c~curl -u me:§ u",
        "sh~-c~curl -u \"me:§ §\" u",
        "sh~-c~cd x; mysql -uroot -p§ db",
        "sh~-c~sshpass -p '§' ssh host",
        "sh~-c~export TOKEN=\"a §\"; ls",
        "sh~-c~bash -c 'TOKEN=\"a §\" ls'",
        "sh~-c~curl -H \"X-Auth-Key: §\" u",
        "sh~-c~curl -H 'Authorization: Token §' u",
        "sh~-c~curl -H 'Cookie: a=b; c=§' u",
        "sh~-c~login --password \"§\"",
        "sh~-c~curl -d '{\"password\":\"§\"}' u",
        "sh~-c~echo hi\ncurl 'https://a.example/?sig=§'",
        "sh~-c~curl -d \"{\\\"token\\\":\\\"§\\\"}\" u",
    ] {
        let line = form.replace('§', VALUE);
        let shown = command(&line);
        assert!(!shown.contains(VALUE) && shown.contains("***"), "{line}: {shown}");
    }
    for known in
        ["ghp_", "github_pat_", "glpat-", "xoxb-", "sk-", "AKIA", "AIza", "eyJ", "npm_", "hf_", "hvs."]
    {
        let secret = format!("{known}0123456789abcdefghij");
        assert_eq!(command(&format!("echo~{secret}")), "echo ***");
    }
}

#[test]
fn commands_without_secrets_are_shown_as_they_are() {
    for line in [
        "ls~-l~/usr/bin",
        "kubectl~get~pods~-n~team~-o~wide",
        "mysql~-h~db~-P~3306~-u~root~db",
        "git~clone~git@a.example:b/c.git",
        "python3~-c~print(1)",
        "curl~-sS~https://a.example/v1/items?page=2&limit=5",
        "curl~-H~Accept:application/json~https://a.example:8443/x",
        "tar~-xpf~a.tar",
        "grep~-u~a~b",
        "ssh~-p~22~host",
        "pip~install~requests==2.31.0",
        "scp~a~me@host:/tmp",
        "curl~-XPUT~https://a.example/x",
        "curl~-HAccept:text/html~https://a.example/x",
        "npm~config~set~//registry.example:8443/a/:always=true",
        "docker~run~-v~/a:/b:ro~image:1.2",
        "git~fetch~origin~main:refs/token/main",
        "password=~cmd",
        "--bypass=1~x",
    ] {
        assert_eq!(command(line), line.replace('~', " "));
    }
    assert_eq!(command("ls~-l~a b~"), "ls -l 'a b' ''");
    assert_eq!(command("login~--password~x~--user=me"), "login --password *** --user=me");
    assert_eq!(command("curl~https://a.example/?token=x&b=c"), "curl https://a.example/?token=***&b=c");
    assert_eq!(command("curl~-H~Authorization: Bearer x"), "curl -H 'Authorization: Bearer ***'");
    assert_eq!(
        command("sh~-c~export TOKEN=\"a b\"; curl --password x y"),
        "sh -c 'export TOKEN=\"***\"; curl --password *** y'"
    );
}

#[test]
fn keys_without_secrets_are_shown_as_they_are() {
    for script in ["print(os.environ[`API_KEY`])", "x[`a`]=`b`", "f(a=1, b=2)", "x = a[i]=b"] {
        let script = script.replace('`', "\"");
        assert_eq!(command(&format!("python3~-c~{script}")), format!("python3 -c '{script}'"));
    }
    assert_eq!(command("sh~-c~f token=a,b c"), "sh -c 'f token=*** c'");
    assert_eq!(command("sh~-c~(TOKEN=a ls) && b"), "sh -c '(TOKEN=*** ls) && b'");
    assert_eq!(command("sh~-c~echo \"$(TOKEN=a)\" b"), "sh -c 'echo \"$(TOKEN=***)\" b'");
}

#[test]
fn program_of_a_command_has_no_secret() {
    for (argument, shown) in [
        ("/usr/bin/python3", "python3"),
        ("sh", "sh"),
        ("PASSWORD=Hunter2 cmd", "PASSWORD=*** cmd"),
        ("PASSWORD=a/Hunter2", "PASSWORD=***"),
        ("/tmp/ghp_0123456789abcdefghij", "***"),
        ("curl -u me:a/Hunter2 u", "curl -u *** u"),
    ] {
        assert_eq!(Text::program(argument).as_str(), shown, "{argument}");
    }
}

#[test]
fn paths_and_user_agents_have_no_secrets() {
    for (path, shown) in [
        ("/api/v1/namespaces/default/secrets/top?x=y", "/api/v1/namespaces/default/secrets/top"),
        ("/apis/a.example/v1/things/0b1c1f0e-5b1f-4c57-9f0a-6d3b8c1d2e3f", ""),
        ("/blobs/sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", ""),
        ("/bot123456:AAEhBOweik6ad9r_QXMENQjcrGbqCr4K-bc/send", "/***/send"),
        ("/services/T00000000/B00000000/xOxBxVxZx1x2x3x4x5x6x7x8", "/services/T00000000/B00000000/***"),
        ("/ghp_0123456789abcdefghij", "/***"),
        ("/a;token=x/b", "/a&token=***/b"),
        ("/token=x", "/token=***"),
        ("/token%3Dx", "/***"),
        ("/a%253Fsig%253Dx", "/***"),
        ("/x/https://me:pw@a.example/b", "/x/https:/***@a.example/b"),
        ("/me:pw@host", "/***@host"),
    ] {
        let shown = if shown.is_empty() { path } else { shown };
        assert_eq!(Text::path(path).as_str().replace("//", "/"), shown, "{path}");
    }
    for (agent, shown) in [
        ("kubectl/v1.34.0 (linux/amd64) kubernetes/abcdef1", ""),
        ("python-requests/2.31.0", ""),
        ("Mozilla/5.0 (X11; Linux x86_64; rv:109.0) Gecko/20100101 Firefox/115.0", ""),
        ("tool token=x", "tool token=***"),
        ("tool ghp_0123456789abcdefghij", "tool ***"),
        ("Bearer abc", "Bearer ***"),
        ("tool aB3dE5gH7jK9mN1pQ3sT5vW7", "tool ***"),
    ] {
        let shown = if shown.is_empty() { agent } else { shown };
        assert_eq!(Text::agent(agent).as_str(), shown);
    }
}
