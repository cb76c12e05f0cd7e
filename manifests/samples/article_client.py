"""Classify texts with the ensemble sentiment_ensemble, using NVIDIA's tritonclient over HTTP.

    python manifests/samples/article_client.py 127.0.0.1:8000 "Best concert of my life." "So dull."

Some tutorials pass `binary_format=True`; no tritonclient release has that argument (TypeError). Use
`binary_data=True`; nothing else has to change.
"""

from __future__ import annotations

import sys

import numpy as np
import tritonclient.http as httpclient


def classify(url: str, sentences: list[str]) -> np.ndarray:
    """Return LOGITS, one row per sentence, from the server at ``HOST:PORT``."""
    client = httpclient.InferenceServerClient(url=url)
    texts = np.array([[sentence.encode("utf-8")] for sentence in sentences], dtype=np.object_)
    text = httpclient.InferInput("TEXT", list(texts.shape), "BYTES")
    text.set_data_from_numpy(texts, binary_data=True)
    logits = httpclient.InferRequestedOutput("LOGITS", binary_data=True)
    result = client.infer("sentiment_ensemble", inputs=[text], outputs=[logits])
    return result.as_numpy("LOGITS")


if __name__ == "__main__":
    address, *rows = sys.argv[1:]
    for sentence, logits in zip(rows, classify(address, rows), strict=True):
        print(f"{['negative', 'positive'][int(np.argmax(logits))]}  {logits}  {sentence}")
