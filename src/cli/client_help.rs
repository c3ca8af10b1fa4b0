//! The texts of `conch infer --help` and `conch bench --help`.

/// The text of `conch bench --help`.
pub(crate) fn bench_usage() -> String {
    // Load is not encrypted.
    let (server, _) = SERVER.split_once(CA).unwrap_or((SERVER, ""));
    let server = server.replace("https://HOST:PORT or unix:/PATH", "or unix:/PATH");
    format!("{BENCH}{TENSORS}{server}")
}

/// The text of `conch infer --help`.
pub(crate) fn infer_usage() -> String {
    format!("{INFER}{TENSORS}{SERVER}")
}

const INFER: &str = "\
Usage: conch infer MODEL [--input NAME=VALUE]... [options]

  Asks a running server, conch or any other that speaks the KServe protocol (v2), and prints its
  answer. Types and shapes that are not given are those of the model's metadata.
  Example: conch infer identity --input 'INPUT0=[[1,2,3]]'

  The exit code is 0 for an answer, 1 if there is none, and 2 if the command line cannot be meant.

  --output NAME
\tAsk for this output only. May be repeated.
  --classes N
\tShow the N largest values of each output, with their labels.
  --save DIRECTORY
\tWrite each output to NAME.npy there: BF16 as float32, BYTES padded to the longest.
  --json
\tPrint the answer as the server sends it, in JSON.
  --no-binary
\tSend tensors, and ask for them, in JSON: for servers without the extension for binary tensors.
  --id TEXT
\tThe id of the request.
";

const BENCH: &str = "\
Usage: conch bench MODEL [options]

  Measures a running server. Requests are sent at the times that a rate asks for, whether or not
  earlier ones are answered, and a latency counts from the time at which its request was due. One
  rate follows the other: a line for each, and curves of latency over the rate in the end.
  Example: conch bench identity --random --latency-limit-ms 20

  The exit code is 0 if the server kept up with one of the rates, 1 if not, and 2 if the command
  line cannot be meant. A server keeps up if all is answered well, and no more is left when the
  rate ends than is usually in flight.

  --protocol http|grpc
\tDefault: http. gRPC is asked at http://127.0.0.1:8001 unless --url says otherwise.
  --rates N,...
\tOffer these rates, in requests per second. Default: double, until it is too much
  --start-rate N
\tThe first rate if they double. Default: 100
  --latency-limit-ms N
\tA rate whose 99th percentile is beyond it is too much.
  --seconds N
\tHow long each rate is measured. Default: 5
  --warm-up-seconds N
\tHow long each is offered before. Default: 1
  --arrivals even|poisson
\tAt equal distances, or as many independent callers come. Default: poisson
  --connections N
\tOver HTTP, each carries one request at a time. Default: 64, or 4 over gRPC
  --in-flight N
\tCalls that may be open at a time over gRPC; later ones wait, which counts. Default: 1024
  --svg FILE
\tDraw percentiles over the rate.
  --json FILE
\tWrite all figures.
";

/// What is behind it is of other commands, too.
const TENSORS: &str = "
Inputs:
  --input NAME=VALUE
\tA value is
\t  JSON: a number, true, nested lists; for BYTES a text, as it stands or in quotes
\t  @FILE.json: the same, or an object with shape and data
\t  @FILE.npy: an array, with its own shape and the type that the model wants
\t  @FILE.png, @FILE.jpg: an image, in the size, order and type that the model wants
\t  @FILE: any file, where the model wants BYTES, or UINT8 of any length
\tA batch of one may be left out of a shape, and a flat list is as good as a nested one.
  --zeros
\tFill inputs that are not given with zeros.
  --random
\tFill them with numbers by chance, the same in every run: of 0 to 1, or integers below 100.
  --shape NAME=SIZE,...
\tThe shape of an input, sent as it is.
  --scaling none|unit|inception|vgg|imagenet
\tWhat becomes of pixels: as they are (0 to 255), 0 to 1, -1 to 1, less the means of VGG, or by the
\tmeans and deviations of ImageNet. Default: none
  --layout nchw|nhwc
\tWhere the channels of images are, if the shape of the input does not say so.
";

/// The option of TLS, the last of the server.
const CA: &str = "  --ca-certificate";

const SERVER: &str = "
Server:
  --url URL
\thttp://HOST:PORT, https://HOST:PORT or unix:/PATH. Default: http://127.0.0.1:8000
  --version N
\tThe version of the model. Without it the server chooses.
  --parameter NAME=VALUE
\tA parameter of the request: a number, true, false or a text. May be repeated.
  --header 'NAME: VALUE'
\tA header of every request. May be repeated.
  --timeout SECONDS
\tFor a request and its answer. Default: 300
  --ca-certificate FILE
\tThe certificates, in PEM, that vouch for a server with https. Default: those of the system
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::parse_infer;
    use crate::client_bench::parse_bench;
    use crate::client_top::parse_top;
    use crate::command_table::COMMANDS;
    use crate::flag::EarlyExit;

    #[test]
    fn every_option_of_the_table_is_taken() {
        let refused = |name: &str, words: [&str; 2]| {
            let words = words.map(String::from).into_iter();
            match name {
                "infer" => parse_infer(words).err(),
                "bench" => parse_bench(words).err(),
                _ => parse_top(words).err(),
            }
        };
        for name in ["infer", "bench", "top"] {
            let row = COMMANDS.iter().find(|command| command.name == name);
            for flag in row.unwrap().flags {
                let exit = refused(name, ["m", &format!("--{flag}")]);
                // Most want a value.
                if let Some(EarlyExit::BadCommand(reason)) = exit {
                    assert!(reason.contains("needs a value"), "{name} {flag}: {reason}");
                }
            }
            let unknown = refused(name, ["m", "--no-such"]);
            assert!(matches!(unknown, Some(EarlyExit::BadCommand(_))), "{name}");
        }
    }

    #[test]
    fn every_option_is_explained() {
        for (name, text) in [("infer", infer_usage()), ("bench", bench_usage())] {
            let row = COMMANDS.iter().find(|command| command.name == name);
            for flag in row.unwrap().flags {
                assert!(text.contains(&format!("\n  --{flag}")), "{name} {flag}");
            }
            let explained = text.lines().filter(|line| line.starts_with("  --")).count();
            assert_eq!(explained, row.unwrap().flags.len(), "{name}");
        }
    }
}
