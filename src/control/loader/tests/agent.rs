//! The life of repository agents around models of the fake backend.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use conch_engine::testing::{Directory, until};
use conch_engine::{Backend, BackendHost, BackendSpec, Error};

use super::fake::{Host, fault};
use super::options;
use crate::load_overrides::Overrides;
use crate::options::{ControlMode, EngineOptions};
use crate::{AgentAction, AgentContext, AgentHost, AgentModel, PluginHost, Server};

/// Agents that write down what they hear. What a parameter says, they do: `refuse` an action,
/// `move` the model; `slow` ones take a while to come.
#[derive(Default)]
struct Agents {
    heard: Arc<Mutex<Vec<String>>>,
}

struct Agent {
    name: String,
    heard: Arc<Mutex<Vec<String>>>,
    refuses: Option<String>,
    location: PathBuf,
}

/// The fake backend beside these agents.
#[derive(Default)]
struct WithAgents {
    host: Host,
    agents: Agents,
}

impl AgentHost for Agents {
    fn attach(&self, name: &str, context: AgentContext) -> Result<Arc<dyn AgentModel>, Error> {
        if name == "absent" {
            return Err(Error::invalid("unable to find it"));
        }
        let find = |wanted: &str| {
            let mut parameters = context.parameters.iter();
            parameters
                .find(|(key, _)| key == wanted)
                .map(|(_, value)| value.clone())
        };
        let leaf = context.location.file_name().unwrap().to_string_lossy();
        let seen = format!("{name} sees {leaf} of {}", context.config.max_batch_size);
        self.heard.lock().unwrap().push(seen);
        if find("slow").is_some() {
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(Arc::new(Agent {
            name: name.to_owned(),
            heard: Arc::clone(&self.heard),
            refuses: find("refuse"),
            location: find("move").map_or(context.location.clone(), PathBuf::from),
        }))
    }

    fn list(&self) -> Vec<(String, String)> {
        Vec::new()
    }
}

impl AgentModel for Agent {
    fn act(&self, action: AgentAction) -> Result<(), Error> {
        let heard = format!("{} {action:?}", self.name);
        self.heard.lock().unwrap().push(heard);
        match self.refuses.as_deref() == Some(&format!("{action:?}")) {
            true => Err(Error::internal("not with me")),
            false => Ok(()),
        }
    }

    fn location(&self) -> PathBuf {
        self.location.clone()
    }
}

impl BackendHost for WithAgents {
    fn open(&self, spec: &BackendSpec) -> Result<Arc<dyn Backend>, Error> {
        self.host.open(spec)
    }

    fn list(&self) -> Vec<(String, String, String)> {
        self.host.list()
    }

    fn finalize_all(&self) {
        self.host.finalize_all();
    }
}

impl PluginHost for WithAgents {
    fn agents(&self) -> &dyn AgentHost {
        &self.agents
    }
}

struct Bed {
    directory: Directory,
    host: Arc<WithAgents>,
    server: Arc<Server>,
}

impl Bed {
    fn new(fill: impl FnOnce(&Directory)) -> Bed {
        Bed::in_mode(ControlMode::Explicit, fill)
    }

    fn in_mode(model_control_mode: ControlMode, fill: impl FnOnce(&Directory)) -> Bed {
        let directory = Directory::new();
        directory.folder("r");
        fill(&directory);
        let host = Arc::new(WithAgents::default());
        let options = EngineOptions {
            model_control_mode,
            ..options(&directory, &["r"])
        };
        let server = Server::start(options, Arc::clone(&host) as Arc<dyn PluginHost>).unwrap();
        Bed {
            directory,
            host,
            server,
        }
    }

    fn load(&self, name: &str) -> Result<(), Error> {
        self.server.load_model(name, Overrides::default())
    }

    /// What the agents heard since the last time, once `count` lines are there.
    fn heard(&self, count: usize) -> Vec<String> {
        let heard = &self.host.agents.heard;
        until(&format!("{count} lines"), || {
            heard.lock().unwrap().len() >= count
        });
        std::mem::take(&mut *heard.lock().unwrap())
    }
}

/// Lines of configuration: agents, each with its parameters.
fn agents(list: &[(&str, &[(&str, &str)])]) -> String {
    let agent = |(name, parameters): &(&str, &[(&str, &str)])| {
        let parameters: Vec<String> = parameters
            .iter()
            .map(|(key, value)| format!("parameters {{ key: '{key}' value: '{value}' }}"))
            .collect();
        format!("agents {{ name: '{name}' {} }}", parameters.join(" "))
    };
    let agents: Vec<String> = list.iter().map(agent).collect();
    format!("model_repository_agents {{ {} }}", agents.join(" "))
}

#[test]
fn agents_prepare_one_model_after_the_other_as_a_server_starts() {
    let bed = Bed::in_mode(ControlMode::None, |directory| {
        let chain = agents(&[("one", &[("slow", "yes")])]);
        for number in 0..8 {
            directory.model("r", &format!("m{number}"), &["1"], &chain);
        }
    });
    let heard = bed.heard(24);
    let prepared: Vec<&String> = heard
        .iter()
        .filter(|line| *line != "one LoadComplete")
        .collect();
    assert_eq!(prepared.len(), 16, "{heard:?}");
    for pair in prepared.chunks(2) {
        assert!(pair[0].starts_with("one sees m"), "{heard:?}");
        assert_eq!(pair[1], "one Load", "{heard:?}");
    }
}

#[test]
fn a_life_goes_in_order_and_back() {
    let bed = Bed::new(|directory| {
        let chain = agents(&[("first", &[("refuse", "Unload")]), ("second", &[])]);
        directory.model(
            "r",
            "m",
            &["1", "2"],
            &format!("version_policy {{ all {{ }} }} {chain}"),
        );
    });
    bed.load("m").unwrap();
    let loaded = [
        "first sees m of 8",
        "first Load",
        "second sees m of 8",
        "second Load",
        "second LoadComplete",
        "first LoadComplete",
    ];
    assert_eq!(bed.heard(6), loaded);
    bed.load("m").unwrap();
    assert!(bed.heard(0).is_empty(), "nothing changed");
    bed.server.unload_model("m", false).unwrap();
    // Once for both versions, and the last word when both are gone; that the first refuses to
    // unload changes nothing.
    let unloaded = [
        "first Unload",
        "second Unload",
        "second UnloadComplete",
        "first UnloadComplete",
    ];
    assert_eq!(bed.heard(4), unloaded);
    assert_eq!(bed.host.host.events.count("drop model"), 2);

    // A reload: the new one is complete, then the old one goes.
    bed.load("m").unwrap();
    bed.heard(6);
    bed.directory.folder("r/m/3");
    bed.load("m").unwrap();
    let heard = bed.heard(10);
    let at = |line: &str| heard.iter().position(|other| other == line).expect(line);
    assert!(at("first Load") < at("first Unload"), "{heard:?}");
    assert!(at("first Unload") < at("first UnloadComplete"), "{heard:?}");
    bed.server.stop().unwrap();
    assert_eq!(
        bed.heard(4),
        unloaded,
        "the end of the server is that of its models"
    );
}

#[test]
fn refusals_and_failures_end_in_load_fail() {
    let bed = Bed::new(|directory| {
        let refusing = agents(&[
            ("first", &[]),
            ("second", &[("refuse", "Load")]),
            ("third", &[]),
        ]);
        directory.model("r", "refused", &["1"], &refusing);
        directory.model(
            "r",
            "failing",
            &["1"],
            &format!("{} {}", fault("load"), agents(&[("only", &[])])),
        );
        directory.model("r", "versionless", &[], &agents(&[("only", &[])]));
        directory.model(
            "r",
            "absent",
            &["1"],
            &agents(&[("first", &[]), ("absent", &[])]),
        );
        directory.model(
            "r",
            "invalid",
            &["1"],
            &format!("name: 'other' {}", agents(&[("only", &[])])),
        );
    });
    let only = ["only sees {} of 8", "only Load", "only LoadFail"];
    let of = |name: &str| only.map(|line| line.replace("{}", name)).to_vec();
    let table: [(&str, Vec<String>); 5] = [
        (
            "refused",
            [
                "first sees refused of 8",
                "first Load",
                "second sees refused of 8",
                "second Load",
                "second LoadFail",
                "first LoadFail",
            ]
            .map(str::to_owned)
            .to_vec(),
        ),
        ("failing", of("failing")),
        ("versionless", of("versionless")),
        (
            "absent",
            ["first sees absent of 8", "first Load", "first LoadFail"]
                .map(str::to_owned)
                .to_vec(),
        ),
        ("invalid", of("invalid")),
    ];
    for (name, expected) in table {
        bed.load(name).unwrap_err();
        assert_eq!(bed.heard(expected.len()), expected, "{name}");
    }
    let loads = bed.host.host.events.count("load ");
    assert_eq!(loads, 1, "only `failing` got as far as the backend");
    bed.server.stop().unwrap();
}

#[test]
fn an_agent_can_move_a_model() {
    let bed = Bed::new(|directory| {
        directory.file("elsewhere/moved/config.pbtxt", "max_batch_size: 2");
        directory.folder("elsewhere/moved/1");
        directory.folder("elsewhere/moved/9");
        let elsewhere = directory.path("elsewhere/moved").display().to_string();
        let chain = agents(&[("mover", &[("move", &elsewhere)]), ("after", &[])]);
        directory.model("r", "m", &["1"], &chain);
    });
    bed.load("m").unwrap();
    let heard = bed.heard(6);
    // The next agent sees the place and the configuration there, the model keeps its own
    // configuration.
    assert_eq!(
        heard[..4],
        [
            "mover sees m of 8",
            "mover Load",
            "after sees moved of 2",
            "after Load"
        ]
    );
    let version = Arc::clone(bed.server.registry().snapshot().find("m", None).unwrap());
    assert_eq!((version.version, version.config.max_batch_size), (9, 8));
    let path = bed.host.host.paths.lock().unwrap().last().cloned().unwrap();
    assert_eq!(path, bed.directory.path("elsewhere/moved"));
    bed.server.stop().unwrap();
}

#[test]
fn a_model_without_a_file_has_no_agents() {
    let bed = Bed::new(|directory| directory.folder("r/bare/1"));
    bed.load("bare").unwrap_err();
    assert!(bed.heard(0).is_empty());
    let config = concat!(
        r#"{"backend":"fake","max_batch_size":3,"#,
        r#""model_repository_agents":{"agents":[{"name":"given"}]},"input":[{"name":"IN","#,
        r#""data_type":"TYPE_INT32","dims":[1]}],"output":[{"name":"OUT","#,
        r#""data_type":"TYPE_INT32","dims":[1]}]}"#
    );
    let overrides = Overrides {
        config: Some(config.to_owned()),
        files: Vec::new(),
    };
    bed.server.load_model("bare", overrides).unwrap();
    assert_eq!(bed.heard(3)[0], "given sees bare of 3");
    bed.server.stop().unwrap();
}
