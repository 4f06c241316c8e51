"""How profane texts are, by scikit-learn: pip install alt-profanity-check."""


class Profanity:
    labels = ("clean", "profane")

    def load(self):
        from profanity_check import predict_prob

        self.predict_prob = predict_prob

    def predict_batch(self, texts):
        return [[[1 - p, p]] for p in self.predict_prob(texts)]
