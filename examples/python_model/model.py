"""How profane texts are, by scikit-learn: pip install alt-profanity-check."""

from itertools import islice


class Profanity:
    labels = ("clean", "profane")

    def load(self):
        from profanity_check import predict_prob

        self.predict_prob = predict_prob

    def predict_batch(self, requests):
        requests = [[each] if isinstance(each, str) else each for each in requests]
        scores = iter(self.predict_prob([text for texts in requests for text in texts]))
        return [[[1 - p, p] for p in islice(scores, len(texts))] for texts in requests]
