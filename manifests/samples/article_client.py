"""A client of an ensemble named sentiment_ensemble, with NVIDIA's tritonclient over HTTP: texts in, LOGITS out.

    python manifests/samples/article_client.py 127.0.0.1:8000 "Best concert of my life." "What a waste of money."

Tutorials spell the keyword `binary_format=`; no release of tritonclient knows it (TypeError). It is `binary_data=`, and nothing else has to change.
"""

from __future__ import annotations

import sys

import numpy as np
import tritonclient.http as httpclient


def classify(url: str, sentences: list[str]) -> np.ndarray:
    """LOGITS, one row per sentence, of the server at ``HOST:PORT``."""
    client = httpclient.InferenceServerClient(url=url)
    texts = np.array([[sentence.encode("utf-8")] for sentence in sentences], dtype=np.object_)
    text = httpclient.InferInput("TEXT", list(texts.shape), "BYTES")
    text.set_data_from_numpy(texts, binary_data=True)
    wanted = httpclient.InferRequestedOutput("LOGITS", binary_data=True)
    answer = client.infer("sentiment_ensemble", inputs=[text], outputs=[wanted])
    return answer.as_numpy("LOGITS")


if __name__ == "__main__":
    address, *rows = sys.argv[1:]
    for sentence, logits in zip(rows, classify(address, rows), strict=True):
        print(f"{['negative', 'positive'][int(np.argmax(logits))]}  {logits}  {sentence}")
