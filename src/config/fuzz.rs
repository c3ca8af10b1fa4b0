//! Seeded fuzzing of everything that reads text: no input may panic, and what is accepted must
//! survive a round trip.

use std::panic::catch_unwind;

use crate::{
    Gpus, ResolvedConfig, from_json, normalize, parse_text, resolve_instance_groups, to_json,
};

/// Configurations that together use every construct of the text format.
const SEEDS: [&str; 3] = [
    r#"name: "m" backend: "python" max_batch_size: 0x8 # comment
input [ { name: "a" data_type: TYPE_FP32 dims: [ 3, -1 ] reshape: < shape: [ 1, 3, -1 ] > }, {
  name: 'b' "c" data_type: 13 dims: 1; } ]
output { name: "o" data_type: TYPE_INT64 dims: [ 017 ] }
dynamic_batching { preferred_batch_size: [ 1, 2 ] priority_levels: 2 default_priority_level: 1
  priority_queue_policy { key: 2 value { max_queue_size: 3 } } }
instance_group [ { kind: KIND_CPU count: 2 } ] parameters: { key: "\303\251\n\x41\u00e9", value:
  { string_value: "v" } }"#,
    r#"platform: "ensemble" input { name: "x" data_type: TYPE_FP32 dims: 1 } output { name: "y"
  data_type: TYPE_FP32 dims: 1 }
ensemble_scheduling { step [ { model_name: "p" model_version: -1 input_map { key: "i" value: "x"
  } output_map { key: "o" value: "t" } },
{ model_name: "q" input_map { key: "i" value: "t" } output_map { key: "o" value: "y" } } ] }"#,
    r#"backend: "b" sequence_batching { direct { minimum_slot_utilization: .5e0f }
  max_sequence_idle_microseconds: 5
control_input [ { name: "S" control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ -inf, nan
  ] bool_false_true: [ t, False ] } ] } ]
state { initial_state { zero_data: true dims: [ 2 ] } } } version_policy: { all { } }
  model_metrics { metric_control { histogram_options { buckets: [ 1, 2.5e-3 ] } } }"#,
];

/// Seeds that once failed, of each loop.
const KEPT_TEXT: &[u64] = &[];
const KEPT_JSON: &[u64] = &[];

#[test]
fn no_text_panics_and_what_is_read_survives() {
    run("CONCH_CONFIG_TEXT_SEED", KEPT_TEXT, 5_000, |random| {
        let mut text = SEEDS[random.below(SEEDS.len())].as_bytes().to_vec();
        random.mutate(&mut text, b"{}[]<>:;,#\"'\\-.xe0189f \n\x00\xFF");
        let Ok(mut config) = parse_text("f", &text) else {
            return;
        };
        let json = to_json(&config);
        if !json.is_empty() && !json.contains("NaN") {
            assert_eq!(from_json(&json).as_ref(), Ok(&config));
        }
        normalize(&mut config);
        if resolve_instance_groups(&mut config, &[], &Gpus::default()).is_ok() {
            let _ = ResolvedConfig::from_partial(config.clone());
            let _ = ResolvedConfig::from_message(config);
        }
    });
}

#[test]
fn no_json_panics() {
    let seeds = SEEDS.map(|text| to_json(&parse_text("f", text).expect("the seeds are valid")));
    run("CONCH_CONFIG_JSON_SEED", KEPT_JSON, 5_000, |random| {
        let mut json = seeds[random.below(seeds.len())].as_bytes().to_vec();
        random.mutate(&mut json, b"{}[]:,\"\\-.e0129truenl ");
        let Ok(json) = std::str::from_utf8(&json) else {
            return;
        };
        if let Ok(config) = from_json(json)
            && !json.contains("NaN")
        {
            let json = to_json(&config);
            assert!(json.is_empty() || from_json(&json) == Ok(config));
        }
    });
}

/// Runs `body` on the inputs of kept seeds, and then on many more, from time's seed on; or on that
/// of the variable alone. A seed that fails is printed.
fn run(
    variable: &str,
    kept: &[u64],
    count: u64,
    body: impl Fn(&mut Random) + std::panic::RefUnwindSafe,
) {
    let given = std::env::var(variable)
        .ok()
        .and_then(|seed| seed.parse().ok());
    let now = || {
        std::time::UNIX_EPOCH
            .elapsed()
            .map_or(1, |elapsed| elapsed.as_nanos() as u64)
    };
    let (kept, first, count) =
        given.map_or_else(|| (kept, now(), count), |seed| (&[][..], seed, 1));
    for seed in kept
        .iter()
        .copied()
        .chain(first..first.saturating_add(count))
    {
        let result =
            catch_unwind(|| body(&mut Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)));
        assert!(result.is_ok(), "failed; repeat with {variable}={seed}");
    }
}

/// xorshift64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).expect("below a usize")
    }

    /// Changes a text in a few places: bytes replaced, inserted, removed, a piece doubled or moved.
    fn mutate(&mut self, text: &mut Vec<u8>, alphabet: &[u8]) {
        for _ in 0..=self.below(4) {
            if text.is_empty() {
                return;
            }
            let at = self.below(text.len());
            let byte = alphabet[self.below(alphabet.len())];
            let end = (at + self.below(40)).min(text.len());
            match self.below(6) {
                0 => text[at] = byte,
                1 => text.insert(at, byte),
                2 => drop(text.remove(at)),
                3 => drop(text.drain(at..end)),
                4 => {
                    let piece = text[at..end].to_vec();
                    let to = self.below(text.len());
                    text.splice(to..to, piece);
                }
                _ => text.truncate(at),
            }
        }
    }
}
