//! One executable copy of a model: joins the rows of a batch, answers them, and cuts the answers
//! apart.

use std::ffi::CString;

use conch_backend_sdk as sdk;
use sdk::{Batch, DataType, Error, Gather, Join, Response, Scatter};

use crate::forest::{Predictor, Shap};
use crate::served::Served;
use crate::signature::{INPUT, OUTPUT, Output, SHAP_OUTPUT};

/// Memory for batches, kept between them.
pub struct Instance {
    input: CString,
    output: CString,
    shap_output: CString,
    gather: Gather,
    threads_max: usize,
    /// Made by the thread that executes, whose CPUs are the instance's.
    predictor: Option<Predictor>,
    rows: Vec<usize>,
    answers: Vec<f32>,
}

impl Instance {
    /// With so many threads for a batch.
    pub fn new(threads_max: usize) -> Instance {
        Instance {
            threads_max,
            input: c_string(INPUT),
            output: c_string(OUTPUT),
            shap_output: c_string(SHAP_OUTPUT),
            gather: Gather::default(),
            predictor: None,
            rows: Vec::new(),
            answers: Vec::new(),
        }
    }

    /// Answers a batch.
    ///
    /// # Errors
    /// What ends the whole batch; requests without a response yet get it.
    pub fn run(&mut self, model: &Served, batch: &Batch<'_>) -> Result<(), Error> {
        let values = self.values(model, batch)?;
        let total = values.len() / model.forest.feature_count;
        let (mut wants_answers, mut wants_shap) = (false, false);
        for request in batch.requests() {
            wants_answers |= request.wants(&self.output)?;
            wants_shap |= model.shap.is_some() && request.wants(&self.shap_output)?;
        }
        let mut responses = batch
            .requests()
            .map(|request| request.respond().map(Some))
            .collect::<Result<Vec<_>, Error>>()?;
        batch.begin_compute();
        let answers = match wants_answers {
            true => Some(self.answer(model, &values, total)?),
            false => None,
        };
        let explained = match &model.shap {
            Some((shap, output)) if wants_shap => Some((
                explain(shap, &values, model.forest.feature_count, total)?,
                output,
            )),
            _ => None,
        };
        batch.end_compute();
        let mut deliver = |name: &CString, output: &Output, bytes: &[u8]| {
            let mut shape = vec![i64::try_from(total).unwrap_or(i64::MAX)];
            shape.extend_from_slice(&output.dims);
            let scatter = Scatter {
                name,
                data_type: DataType::Fp32,
                shape: &shape,
                bytes,
            };
            scatter.write(batch, &self.rows, &mut responses)
        };
        if let Some(bytes) = answers {
            deliver(&self.output, &model.output, &bytes)?;
        }
        if let Some((bytes, output)) = explained {
            deliver(&self.shap_output, output, &bytes)?;
        }
        send(responses, &model.name);
        Ok(())
    }

    /// The rows of all requests, and how many are whose.
    fn values(&mut self, model: &Served, batch: &Batch<'_>) -> Result<Vec<f32>, Error> {
        let gathered = self.gather.collect(batch, &self.input, Join::Rows)?;
        let gathered =
            gathered.ok_or_else(|| Error::invalid(format!("no request has input '{INPUT}'")))?;
        let values: Vec<f32> = gathered.bytes.to_elements();
        self.rows.clear();
        for request in batch.requests() {
            self.rows.push(batch.rows_of(request)?);
        }
        let feature_count = model.forest.feature_count;
        let total: usize = match batch.max_batch_size() > 0 {
            true => self.rows.iter().sum(),
            false => values.len() / feature_count,
        };
        if total.checked_mul(feature_count) == Some(values.len()) {
            return Ok(values);
        }
        Err(Error::invalid(format!(
            "unexpected shape for input '{INPUT}' for model '{}'. Expected [-1,{feature_count}], \
             got {}",
            model.name,
            sdk::shape_text(&gathered.shape)
        )))
    }

    /// The bytes of the answers.
    fn answer(&mut self, model: &Served, values: &[f32], total: usize) -> Result<Vec<u8>, Error> {
        let width = model.output.width;
        let count = total
            .checked_mul(width)
            .ok_or_else(|| Error::internal("too many answers"))?;
        self.answers.clear();
        let refused = |_| Error::out_of_memory(count.saturating_mul(size_of::<f32>()));
        self.answers.try_reserve_exact(count).map_err(refused)?;
        self.answers.resize(count, 0.0);
        let threads_max = self.threads_max;
        let predictor = self
            .predictor
            .get_or_insert_with(|| Predictor::new(threads_max));
        let finish = |values: &[f64], answer: &mut [f32]| model.answer.write(values, answer);
        predictor.predict(&model.forest, values, &mut self.answers, width, &finish);
        let answers = self.answers.chunks(width);
        write_rows(width, total, answers, |row, bytes| {
            bytes.extend(row.iter().flat_map(|value| value.to_le_bytes()));
        })
    }
}

/// The bytes of the rows' Shapley values.
fn explain(
    shap: &Shap,
    values: &[f32],
    feature_count: usize,
    total: usize,
) -> Result<Vec<u8>, Error> {
    let mut sums = vec![0.0; shap.width()];
    let rows = values.chunks(feature_count);
    write_rows(shap.width(), total, rows, |row, bytes| {
        shap.explain(row, &mut sums);
        bytes.extend(sums.iter().flat_map(|&sum| (sum as f32).to_le_bytes()));
    })
}

fn send(responses: Vec<Option<Response<'_>>>, model: &str) {
    for response in responses.into_iter().flatten() {
        if let Err(error) = response.send() {
            sdk::error!("failed to send a response of model '{model}': {error}");
        }
    }
}

/// The bytes of `total` rows of `width` values, which `write` appends row by row.
fn write_rows<'r>(
    width: usize,
    total: usize,
    rows: impl Iterator<Item = &'r [f32]>,
    mut write: impl FnMut(&[f32], &mut Vec<u8>),
) -> Result<Vec<u8>, Error> {
    let byte_count = total
        .checked_mul(width)
        .and_then(|count| count.checked_mul(size_of::<f32>()))
        .ok_or_else(|| Error::internal("too many answers"))?;
    let mut bytes = Vec::new();
    let refused = |_| Error::out_of_memory(byte_count);
    bytes.try_reserve_exact(byte_count).map_err(refused)?;
    for row in rows {
        write(row, &mut bytes);
    }
    Ok(bytes)
}

fn c_string(name: &str) -> CString {
    CString::new(name).unwrap_or_default()
}
