//! Prints a request that works for each model that was named on the command line, for whoever sits
//! there: as it stands, to be pasted, on the standard output. A log in JSON, which a program reads,
//! has it as a message instead.

use std::io::Write as _;
use std::thread;

use conch_control::StandaloneModel;
use conch_control::example_request::{self, CurlTarget};
use conch_control::server::Server;
use conch_frontend::{Addresses, Category, Restrictions};
use conch_log as log;
use conch_log::LogFormat;
use conch_net::ListenAddress;

/// Prints the requests, if the server speaks HTTP. Does not block: a terminal may be stopped, and a
/// pipe full, for as long as they like.
pub fn print(
    server: &Server,
    addresses: &Addresses,
    restrictions: &Restrictions,
    models: &[StandaloneModel],
) {
    let Some(address) = &addresses.http else {
        return;
    };
    let target = target(address, addresses.has_https, restrictions);
    let examples = models.iter().map(|model| example(server, &target, model));
    let text: String = examples.collect();
    if text.is_empty() {
        return;
    }
    if log::settings().format == LogFormat::Json {
        log::info!("{}", text.trim());
        return;
    }
    let write = move || {
        // Whoever reads may be gone.
        let _ = std::io::stdout().write_all(text.as_bytes());
    };
    let spawned = thread::Builder::new()
        .name(String::from("examples"))
        .spawn(write);
    if let Err(cause) = spawned {
        log::warning!("cannot start a thread that prints examples of requests: {cause}");
    }
}

/// The lines about one model. One that is not there has a line in the log.
fn example(server: &Server, target: &CurlTarget, model: &StandaloneModel) -> String {
    let name = &model.name;
    let snapshot = server.registry().snapshot();
    let Ok(version) = snapshot.find(name, None) else {
        return String::new();
    };
    match example_request::curl(&version.config, target) {
        Some(command) => format!("\nAsk model '{name}', in another terminal:\n\n{command}\n"),
        None => format!("\nModel '{name}' is served; its tensors are too large for an example.\n"),
    }
}

fn target(address: &ListenAddress, is_encrypted: bool, restrictions: &Restrictions) -> CurlTarget {
    let mut options = Vec::new();
    let scheme = match is_encrypted {
        true => {
            // Whoever pastes it here trusts the server; the certificate names another host.
            options.push(String::from("--insecure"));
            "https"
        }
        false => "http",
    };
    let origin = match address {
        // An address of every interface is none that a client could use.
        ListenAddress::Tcp(address) if address.ip().is_unspecified() => {
            format!("{scheme}://localhost:{}", address.port())
        }
        ListenAddress::Tcp(address) => format!("{scheme}://{address}"),
        ListenAddress::Unix(path) => {
            options.extend([String::from("--unix-socket"), path.display().to_string()]);
            format!("{scheme}://localhost")
        }
    };
    if let Some(restriction) = restrictions.of(Category::Inference) {
        // The value is a secret.
        options.extend([
            String::from("-H"),
            format!("{}: <value>", restriction.header()),
        ]);
    }
    CurlTarget { origin, options }
}
